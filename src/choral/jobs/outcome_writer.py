"""Writes the outcome of a job to Redis, the log and the metrics, and decides whether a failure is retried."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from choral.common.backoff import backoff_s
from choral.errors import ChoralError
from choral.jobs.active_job import ActiveJob, JobAborted
from choral.jobs.job_runner import JobOutcome
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.settings import WorkerSettings
from choral.jobs.worker_queue import WorkerQueue
from choral.types import Transcript

log = logging.getLogger("choral.jobs")
MAX_PAUSE_S = 600.0


@dataclass
class WorkerTotals:
    """Counts since the worker started."""

    n_succeeded: int = 0
    n_failed: int = 0
    audio_s: float = 0.0


class OutcomeWriter:
    def __init__(self, queue: WorkerQueue, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._queue, self._settings, self._metrics = queue, settings, metrics
        self.totals = WorkerTotals()

    async def write(self, job: ActiveJob, outcome: JobOutcome) -> None:
        """May be repeated: Redis stores the first outcome only."""
        match outcome:
            case Transcript():
                if await self._queue.succeed(job, outcome) == "stored":
                    self.totals.n_succeeded += 1
                    self.totals.audio_s += outcome.duration
                    self._metrics.audio_s.inc(outcome.duration)
                    self._metrics.count_end("succeeded", job.timings)
            case ChoralError():
                await self._write_failure(job, outcome)
            case JobAborted():
                await self._write_abort(job)

    async def _write_failure(self, job: ActiveJob, error: ChoralError) -> None:
        n_failures = job.attempts - job.crashes
        if error.is_retryable and n_failures < self._settings.max_attempts:
            pause_s = backoff_s(n_failures, self._settings.retry_s, MAX_PAUSE_S)
            if await self._queue.fail(job, "waiting", error, pause_s) == "stored":
                self._metrics.retries.inc()
                log.warning("%s; next attempt in %.0f s", error, pause_s, extra={"job": job.id})
            return
        state = "dead" if error.is_retryable else "failed"
        if await self._queue.fail(job, state, error) == "stored":
            self.totals.n_failed += 1
            self._metrics.count_end(state, job.timings)
            log.error("%s: %s", state, error, extra={"job": job.id})

    async def _write_abort(self, job: ActiveJob) -> None:
        match job.abort_reason:
            case "cancel":
                if await self._queue.fail(job, "cancelled", None) == "stored":
                    self._metrics.count_end("cancelled", job.timings)
                    log.info("cancelled", extra={"job": job.id})
            case "drain" | "engine_failed":
                max_crashes = self._settings.max_crashes if job.abort_reason == "engine_failed" else 0
                if await self._queue.requeue(job.id, job.entry_id, max_crashes) == "dead":
                    self._metrics.count_end("dead", job.timings)
                    log.error("dead: the engine failed while it ran this job", extra={"job": job.id})
                else:
                    log.info("put back into the queue", extra={"job": job.id})
            case _:
                log.warning("aborted: another worker has claimed it, or it was deleted", extra={"job": job.id})
