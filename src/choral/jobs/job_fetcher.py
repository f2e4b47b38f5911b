"""Chooses and starts the next jobs: those of dead workers, then interactive before batch, with a share for batch.

Entries are kept in `_received` from the moment Redis delivers them until they are started, so that an error in a later
call loses none: the next `fetch` starts them first, and a worker that stops puts them back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from choral.errors import UsageError
from choral.jobs.active_job import ActiveJob
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_queue import PRIORITIES
from choral.jobs.job_states import MAX_INTERACTIVE_IN_A_ROW
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.settings import WorkerSettings
from choral.jobs.worker_queue import StreamEntry, WorkerQueue

log = logging.getLogger("choral.jobs")
MAX_CLAIM_INTERVAL_S = 15.0
FIRST_DEFERRAL_S, MAX_DEFERRAL_S = 2.0, 60.0  # of a job by URL while every place for downloads is taken


class JobFetcher:
    def __init__(
        self,
        queue: WorkerQueue,
        retry: RedisRetry,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        fetch_slots: FetchSlots,
    ) -> None:
        self._queue, self._retry, self._settings, self._metrics = queue, retry, settings, metrics
        self._fetch_slots = fetch_slots
        self._received: list[StreamEntry] = []
        self._n_interactive_in_a_row = 0
        self._last_claim_s = 0.0

    async def fetch(self, n_max: int, wait_s: float, on_start: Callable[[ActiveJob], None]) -> None:
        """Start at most `n_max` jobs and pass each to `on_start`; wait for the first one, at most `wait_s`."""
        if not self._received:
            await self._receive(n_max, wait_s)
        while self._received:
            job = await self._start(self._received[0])
            del self._received[0]
            if job is not None:
                on_start(job)

    async def requeue_received(self) -> None:
        """Put back entries that were received and not started."""
        while self._received:
            await self._queue.requeue_entry(self._received[0])
            del self._received[0]

    async def _receive(self, n_max: int, wait_s: float) -> None:
        if self._is_claim_due():
            await self._claim(n_max)
        if not self._received:
            await self._read_waiting(n_max)
        if not self._received:
            self._received += await self._queue.read(PRIORITIES, 1, wait_s)

    def _is_claim_due(self) -> bool:
        """Not soon after Redis was unreachable: other workers could not renew their leases either."""
        claim_after_s = self._settings.claim_after_s
        is_due = time.monotonic() - self._last_claim_s > min(claim_after_s / 4, MAX_CLAIM_INTERVAL_S)
        return is_due and self._retry.healthy_s > min(claim_after_s / 2, MAX_CLAIM_INTERVAL_S)

    async def _claim(self, n_max: int) -> None:
        for priority in PRIORITIES:
            if len(self._received) < n_max:
                n_left = n_max - len(self._received)
                claimed = await self._queue.claim(priority, n_left, self._settings.claim_after_s)
                self._received += claimed
                for entry in claimed:
                    self._metrics.claims.inc()
                    log.warning("claimed from a worker that is gone", extra={"job": entry.job_id})
        if len(self._received) < n_max:  # otherwise there may be more, and they have waited longest
            self._last_claim_s = time.monotonic()

    async def _read_waiting(self, n_max: int) -> None:
        if self._n_interactive_in_a_row >= MAX_INTERACTIVE_IN_A_ROW:
            self._received += await self._queue.read(["batch"], max(1, n_max // (MAX_INTERACTIVE_IN_A_ROW + 1)))
            self._n_interactive_in_a_row = 0
        if len(self._received) < n_max:
            interactive = await self._queue.read(["interactive"], n_max - len(self._received))
            self._n_interactive_in_a_row += len(interactive)
            self._received += interactive
        if len(self._received) < n_max:
            self._received += await self._queue.read(["batch"], n_max - len(self._received))
            self._n_interactive_in_a_row = 0

    async def _start(self, entry: StreamEntry) -> ActiveJob | None:
        try:
            started = await self._retry.call(lambda: self._queue.start(entry, self._settings.max_crashes))
            if isinstance(started, ActiveJob):
                return await self._with_fetch_slot(started)
        except UsageError as error:  # submitted by another version of Choral, or damaged
            await self._reject(entry, error)
            return None
        if started == "dead":
            self._metrics.count_end("dead")
            log.error("dead: its workers crashed or stopped responding", extra={"job": entry.job_id})
        return None

    async def _reject(self, entry: StreamEntry, rejection: UsageError) -> None:
        log.error("failed: %s", rejection, extra={"job": entry.job_id})
        self._metrics.count_end("failed")
        try:
            await self._retry.call(lambda: self._queue.reject(entry, rejection))
        except UsageError as error:
            log.error("this could not be stored: %s", error, extra={"job": entry.job_id})

    async def _with_fetch_slot(self, job: ActiveJob) -> ActiveJob | None:
        """None: all places for downloads are taken, and the job was put back, so that those behind it pass."""
        if self._fetch_slots.take(job):
            return job
        await self._retry.call(lambda: self._queue.defer(job.id, FIRST_DEFERRAL_S, MAX_DEFERRAL_S))
        return None
