"""Once a second a worker says that it and its jobs are well, hears which jobs to give up, and keeps house.

While this goes on, nobody claims its jobs. Keeping house: jobs whose next try is due go back to their queue, names of
workers long gone leave the group, and memory that is free goes back to the system.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choral.common.aio import run_in_thread
from choral.common.malloc import trim_malloc
from choral.jobs.active_job import ActiveJob
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.outcome_writer import WorkerTotals
from choral.jobs.record import WorkerStatus
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.worker_queue import WorkerQueue

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import PrepPool

BEAT_S = 1.0
SWEEP_EVERY_S = 300.0
TRIM_EVERY_S = 30.0


class Heartbeat:
    def __init__(
        self,
        ledger: WorkerQueue,
        steady: RedisRetry,
        model: Model,
        prep: PrepPool,
        held: Mapping[str, ActiveJob],
        tally: WorkerTotals,
        metrics: WorkerMetrics,
    ) -> None:
        self._ledger, self._steady, self._model, self._prep = ledger, steady, model, prep
        self._held, self._tally, self._metrics = held, tally, metrics
        self._rates = RateMeter()
        self._started_at = time.time()
        self.is_stopping = False

    async def run(self) -> None:
        """Until it is cancelled."""
        swept_s = trimmed_s = time.monotonic()
        was_busy = False
        while True:
            unwanted = await self._steady.through(lambda: self._ledger.beat(self._status(), [*self._held.values()]))
            for job_id, reason in unwanted.items():
                if job_id in self._held:
                    self._held[job_id].give_up(reason)
            await self._steady.through(self._ledger.promote)
            await self._measure()
            if time.monotonic() - swept_s > SWEEP_EVERY_S:
                await self._steady.through(self._ledger.sweep)
                swept_s = time.monotonic()
            if time.monotonic() - trimmed_s > TRIM_EVERY_S or (was_busy and not self._held):
                await run_in_thread(trim_malloc, "heaps")
                trimmed_s = time.monotonic()
            was_busy = bool(self._held)
            await asyncio.sleep(BEAT_S)

    def _status(self) -> WorkerStatus:
        phases = [job.phase for job in self._held.values()]
        n_engines = len(self._model.device.split(", "))
        rates = self._rates.note(self._tally.audio_s, self._model.stats.busy_s / n_engines)
        return WorkerStatus(
            name=self._ledger.worker,
            host=socket.gethostname(),
            model=self._model.name,
            device=self._model.device,
            started_at=self._started_at,
            in_prep=phases.count("prep"),
            in_engine=phases.count("engine"),
            succeeded=self._tally.n_succeeded,
            failed=self._tally.n_failed,
            audio_per_s=rates.audio_per_s,
            busy_share=rates.busy_share,
            is_stopping=self.is_stopping,
        )

    async def _measure(self) -> None:
        status, backlog, metrics = self._status(), self._prep.backlog, self._metrics
        metrics.busy_share.set(status.busy_share)
        metrics.held.labels("prep").set(status.in_prep)
        metrics.held.labels("engine").set(status.in_engine)
        metrics.prep_bytes.set(backlog.memory_bytes)
        for phase in ("waiting", "fetching", "fetched", "decoding"):
            metrics.prep_backlog.labels(phase).set(getattr(backlog, phase))
        counts = await self._steady.through(self._ledger.store.counts)
        for priority, n_jobs in counts.waiting.items():
            metrics.queue.labels(priority).set(n_jobs)


WINDOW_S = 60.0


@dataclass(frozen=True)
class Rates:
    audio_per_s: float
    busy_share: float


class RateMeter:
    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque([(time.monotonic(), 0.0, 0.0)])

    def note(self, audio_s: float, busy_s: float) -> Rates:
        """Given what was done in all so far."""
        now_s = time.monotonic()
        self._points.append((now_s, audio_s, busy_s))
        while len(self._points) > 2 and now_s - self._points[1][0] >= WINDOW_S:
            self._points.popleft()
        then_s, audio_then_s, busy_then_s = self._points[0]
        spent_s = max(now_s - then_s, 1e-9)
        return Rates((audio_s - audio_then_s) / spent_s, min(1.0, (busy_s - busy_then_s) / spent_s))
