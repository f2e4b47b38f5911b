"""The worker's 1 Hz heartbeat: renew leases, receive cancellations, export metrics, run housekeeping.

Other workers claim the jobs of a worker whose heartbeat stops. Housekeeping: queue jobs whose retry is due, remove
consumers of dead workers, return free memory to the operating system.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from choral.common.aio import run_in_thread
from choral.common.malloc import trim_malloc
from choral.jobs.active_job import ActiveJob
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.outcome_writer import JobTotals
from choral.jobs.record import WorkerStatus
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.worker_queue import WorkerQueue

if TYPE_CHECKING:
    from choral.api import Model
    from choral.serving.runtime import Runtime

INTERVAL_S = 1.0
CONSUMER_CLEANUP_S = 300.0
TRIM_S = 30.0
RATE_WINDOW_S = 60.0


class Heartbeat:
    def __init__(
        self,
        queue: WorkerQueue,
        retry: RedisRetry,
        model: Model,
        runtime: Runtime,
        active: Mapping[str, ActiveJob],
        totals: JobTotals,
        metrics: WorkerMetrics,
    ) -> None:
        self._queue, self._retry, self._model, self._runtime = queue, retry, model, runtime
        self._active, self._totals, self._metrics = active, totals, metrics
        self._rates = RateMeter()
        self._started_at = time.time()
        self.is_stopping = False

    async def run(self) -> None:
        """Run until cancelled."""
        cleaned_s = trimmed_s = time.monotonic()
        was_busy = False
        while True:
            aborted = await self._retry.call(lambda: self._queue.heartbeat(self._status(), [*self._active.values()]))
            for job_id, reason in aborted.items():
                if job_id in self._active:
                    self._active[job_id].abort(reason)
            await self._retry.call(self._queue.promote_delayed)
            await self._export_metrics()
            if time.monotonic() - cleaned_s > CONSUMER_CLEANUP_S:
                await self._retry.call(self._queue.remove_idle_consumers)
                cleaned_s = time.monotonic()
            if time.monotonic() - trimmed_s > TRIM_S or (was_busy and not self._active):
                await run_in_thread(trim_malloc, "malloc-trim")
                trimmed_s = time.monotonic()
            was_busy = bool(self._active)
            await asyncio.sleep(INTERVAL_S)

    def _status(self) -> WorkerStatus:
        phases = [job.phase for job in self._active.values()]
        n_engines = len(self._model.device.split(", "))
        audio_per_s, busy_share = self._rates.update(self._totals.audio_s, self._model.stats.busy_s / n_engines)
        return WorkerStatus(
            name=self._queue.worker,
            host=socket.gethostname(),
            model=self._model.name,
            device=self._model.device,
            started_at=self._started_at,
            in_prep=phases.count("prep"),
            in_engine=phases.count("engine"),
            succeeded=self._totals.n_succeeded,
            failed=self._totals.n_failed,
            audio_per_s=audio_per_s,
            busy_share=busy_share,
            is_stopping=self.is_stopping,
        )

    async def _export_metrics(self) -> None:
        status, metrics = self._status(), self._metrics
        metrics.busy_share.set(status.busy_share)
        metrics.held.labels("prep").set(status.in_prep)
        metrics.held.labels("engine").set(status.in_engine)
        for phase, n_requests in dataclasses.asdict(self._runtime.backlog).items():
            metrics.prep_backlog.labels(phase).set(n_requests)
        counts = await self._retry.call(self._queue.jobs.counts)
        for priority, n_jobs in counts.waiting.items():
            metrics.queue.labels(priority).set(n_jobs)


class RateMeter:
    """Rates over the last minute, from running totals."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque([(time.monotonic(), 0.0, 0.0)])

    def update(self, audio_s: float, busy_s: float) -> tuple[float, float]:
        """Seconds of audio per second, and the share of time that the engine was busy."""
        now_s = time.monotonic()
        self._points.append((now_s, audio_s, busy_s))
        while len(self._points) > 2 and now_s - self._points[1][0] >= RATE_WINDOW_S:
            self._points.popleft()
        first_s, first_audio_s, first_busy_s = self._points[0]
        elapsed_s = max(now_s - first_s, 1e-9)
        return (audio_s - first_audio_s) / elapsed_s, min(1.0, (busy_s - first_busy_s) / elapsed_s)
