"""Groups jobs into batches for the log, one line per batch: jobs enter the engine at once, and windows join its steps.

A batch opens with the first job whose audio is ready, and closes when it is full or its wait is over.
"""

from __future__ import annotations

import asyncio
import logging
import time

from choral.jobs.active_job import ActiveJob
from choral.jobs.metrics import WorkerMetrics

log = logging.getLogger("choral.jobs")


class JobBatch:
    def __init__(self, number: int) -> None:
        self.number = number
        self.is_closed = False
        self.n_jobs = self.n_ended = self.n_succeeded = 0
        self.prep_s = 0.0  # of its slowest job
        self.engine_started_s: float | None = None
        self.engine_s = 0.0  # from the start of its first job to the end of its last one

    def enter_engine(self) -> None:
        if self.engine_started_s is None:
            self.engine_started_s = time.monotonic()

    def leave(self, *, has_succeeded: bool) -> None:
        self.n_ended += 1
        self.n_succeeded += has_succeeded
        if self.engine_started_s is not None:
            self.engine_s = time.monotonic() - self.engine_started_s
        self._log_if_done()

    def close(self) -> None:
        self.is_closed = True
        self._log_if_done()

    def _log_if_done(self) -> None:
        if self.is_closed and self.n_ended == self.n_jobs:
            log.info(
                "batch %d: size %d, prep %.2f s, engine %.2f s, succeeded %d",
                self.number,
                self.n_jobs,
                self.prep_s,
                self.engine_s,
                self.n_succeeded,
            )


class BatchFormer:
    def __init__(self, size: int, wait_s: float, metrics: WorkerMetrics) -> None:
        self._size, self._wait_s, self._metrics = size, wait_s, metrics
        self._open: JobBatch | None = None
        self._n_batches = 0
        self._batch_of: dict[str, JobBatch] = {}  # by the id of a job that has entered and not left

    def enter(self, job: ActiveJob) -> None:
        """The job's audio is ready."""
        self._batch_of[job.id] = batch = self.join(job)
        batch.enter_engine()

    def leave(self, job: ActiveJob, has_succeeded: bool) -> None:
        batch = self._batch_of.pop(job.id, None) or self.join(job)
        batch.leave(has_succeeded=has_succeeded)
        if has_succeeded:
            self._metrics.audio_s.inc(job.duration_s or 0.0)

    def join(self, job: ActiveJob) -> JobBatch:
        """Add a job whose audio is ready, or could not be used."""
        if self._open is None:
            self._n_batches += 1
            self._open = JobBatch(self._n_batches)
            asyncio.get_running_loop().call_later(self._wait_s, self._close, self._open)
        batch = self._open
        batch.n_jobs += 1
        batch.prep_s = max(batch.prep_s, (job.fetch_s or 0.0) + (job.decode_s or 0.0))
        if batch.n_jobs == self._size:
            self._close(batch)
        return batch

    def _close(self, batch: JobBatch) -> None:
        if not batch.is_closed:
            self._open = None
            self._metrics.batch_sizes.observe(batch.n_jobs)
            batch.close()
