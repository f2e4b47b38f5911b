"""What became of a job, told to Redis, to the log and to the metrics; and whether a failure gets another try."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from choral.common.backoff import backoff_s
from choral.errors import ChoralError
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_runner import Failed, GivenUp, Outcome, Succeeded
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.settings import WorkerSettings
from choral.jobs.worker_queue import WorkerQueue

log = logging.getLogger("choral.jobs")
LONGEST_PAUSE_S = 600.0


@dataclass
class WorkerTotals:
    """What a worker has done since its start."""

    n_succeeded: int = 0
    n_failed: int = 0
    audio_s: float = 0.0


class OutcomeWriter:
    def __init__(self, ledger: WorkerQueue, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._ledger, self._settings, self._metrics = ledger, settings, metrics
        self.tally = WorkerTotals()

    async def tell(self, job: ActiveJob, outcome: Outcome) -> None:
        """May be repeated: Redis takes each outcome once."""
        match outcome:
            case Succeeded(transcript):
                if await self._ledger.succeed(job, transcript) == "stored":
                    self.tally.n_succeeded += 1
                    self.tally.audio_s += transcript.duration
                    self._metrics.audio_s.inc(transcript.duration)
                    self._metrics.ended("succeeded", job.timings)
            case Failed(error):
                await self._tell_failure(job, error)
            case GivenUp():
                await self._tell_given_up(job)

    async def _tell_failure(self, job: ActiveJob, error: ChoralError) -> None:
        n_failures = job.attempts - job.crashes
        if error.is_retryable and n_failures < self._settings.max_attempts:
            pause_s = backoff_s(n_failures, self._settings.retry_s, LONGEST_PAUSE_S)
            if await self._ledger.fail(job, "waiting", error, pause_s) == "stored":
                self._metrics.retries.inc()
                log.warning("%s; next try in %.0f s", error, pause_s, extra={"job": job.id})
            return
        state = "dead" if error.is_retryable else "failed"
        if await self._ledger.fail(job, state, error) == "stored":
            self.tally.n_failed += 1
            self._metrics.ended(state, job.timings)
            log.error("%s: %s", state, error, extra={"job": job.id})

    async def _tell_given_up(self, job: ActiveJob) -> None:
        match job.reason:
            case "cancel":
                if await self._ledger.fail(job, "cancelled", None) == "stored":
                    self._metrics.ended("cancelled", job.timings)
                    log.info("cancelled", extra={"job": job.id})
            case "drain":
                await self._ledger.hand_back(job)
                log.info("handed back", extra={"job": job.id})
            case _:
                log.warning("another worker has it now, or it is gone", extra={"job": job.id})
