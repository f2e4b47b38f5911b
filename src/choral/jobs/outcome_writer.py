"""Writes the outcome of a job to its store, the log and the metrics; the retry policy decides about failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choral.errors import ChoralError, EngineClosed, QueueFull
from choral.jobs.active_job import ActiveJob, JobAborted
from choral.jobs.job_states import PUT_BACK_S, RetryPolicy, State
from choral.jobs.queue_store import QueueStore
from choral.transcript import Transcript

if TYPE_CHECKING:
    from choral.jobs.metrics import JobMetrics

log = logging.getLogger("choral.jobs")
JobOutcome = Transcript | ChoralError | JobAborted


@dataclass
class JobTotals:
    """Counts since the process started."""

    n_succeeded: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    audio_s: float = 0.0

    @property
    def n_ended(self) -> int:
        return self.n_succeeded + self.n_failed + self.n_cancelled


class OutcomeWriter:
    def __init__(self, store: QueueStore, policy: RetryPolicy, metrics: JobMetrics) -> None:
        self._store, self._policy, self._metrics = store, policy, metrics
        self.totals = JobTotals()

    async def write(self, job: ActiveJob, outcome: JobOutcome) -> None:
        """May be repeated: the store keeps the first outcome only."""
        match outcome:
            case Transcript():
                if await self._store.succeed(job, outcome) == "stored":
                    self.totals.n_succeeded += 1
                    self.totals.audio_s += outcome.duration
                    self._metrics.count_end("succeeded", job.timings)
            case QueueFull() | EngineClosed():  # the job is not the cause
                log.warning("put back: %s", outcome, extra={"job": job.id})
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(job.aborted.wait(), PUT_BACK_S)
                job.abort("drain")
                await self._write_abort(job)
            case ChoralError():
                await self._write_failure(job, outcome)
            case JobAborted():
                await self._write_abort(job)

    async def _write_failure(self, job: ActiveJob, error: ChoralError) -> None:
        state, pause_s = self._policy.after_failure(error, job.attempts, job.crashes)
        if await self._store.fail(job, state, error, pause_s) != "stored":
            return
        if state == "waiting":
            self._metrics.retries.inc()
            log.warning("%s; next attempt in %.0f s", error, pause_s, extra={"job": job.id})
        else:
            self._count_failure(job, state)
            log.error("%s: %s", state, error, extra={"job": job.id})

    def _count_failure(self, job: ActiveJob, state: State) -> None:
        self.totals.n_failed += 1
        self._metrics.count_end(state, job.timings)

    async def _write_abort(self, job: ActiveJob) -> None:
        match job.abort_reason:
            case "cancel":
                if await self._store.fail(job, "cancelled", None) == "stored":
                    self.totals.n_cancelled += 1
                    self._metrics.count_end("cancelled", job.timings)
                    log.info("cancelled", extra={"job": job.id})
            case "drain" | "engine_failed":
                max_crashes = self._policy.max_crashes if job.abort_reason == "engine_failed" else 0
                if await self._store.requeue(job, max_crashes) == "dead":
                    self._count_failure(job, "dead")
                    log.error("dead: the engine failed while it ran this job", extra={"job": job.id})
                else:
                    log.info("put back into the queue", extra={"job": job.id})
            case _:
                log.warning("aborted: another worker has claimed it, or it was deleted", extra={"job": job.id})
