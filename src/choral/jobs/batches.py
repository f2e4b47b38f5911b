"""Jobs that go to the engine together, and the line that is logged of each such batch.

A batch opens with the first job that is prepared, and closes when it is full or its time is over. With the micro-batch
runner its jobs wait for that moment, so that their windows meet in the engine; with the continuous runner nobody waits,
since windows join at every step, and a batch is only what is told together.
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
        self.closed = asyncio.Event()
        self.n_jobs = self.n_left = self.n_succeeded = 0
        self.prep_s = 0.0  # of its slowest job
        self.engine_started_s: float | None = None
        self.engine_s = 0.0  # from its first job's start to its last one's end

    def enter_engine(self) -> None:
        if self.engine_started_s is None:
            self.engine_started_s = time.monotonic()

    def leave(self, *, has_succeeded: bool) -> None:
        self.n_left += 1
        self.n_succeeded += has_succeeded
        if self.engine_started_s is not None:
            self.engine_s = time.monotonic() - self.engine_started_s
        self._tell_if_over()

    def close(self) -> None:
        self.closed.set()
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self.closed.is_set() and self.n_left == self.n_jobs:
            log.info(
                "batch %d: size %d, prep %.2f s, engine %.2f s, succeeded %d",
                self.number,
                self.n_jobs,
                self.prep_s,
                self.engine_s,
                self.n_succeeded,
            )


class BatchFormer:
    def __init__(self, size: int, wait_s: float, metrics: WorkerMetrics, *, holds: bool) -> None:
        self._size, self._wait_s, self._metrics, self._holds = size, wait_s, metrics, holds
        self._open: JobBatch | None = None
        self._n_batches = 0

    def join(self, job: ActiveJob) -> JobBatch:
        """The batch of a job whose prep is over, well or not."""
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

    async def ready(self, batch: JobBatch) -> None:
        if self._holds:
            await batch.closed.wait()

    def _close(self, batch: JobBatch) -> None:
        if not batch.closed.is_set():
            self._open = None
            self._metrics.batch_sizes.observe(batch.n_jobs)
            batch.close()
