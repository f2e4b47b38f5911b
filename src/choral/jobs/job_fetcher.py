"""Which jobs a worker takes next: interactive before batch, with a share for batch, and those of workers that died."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from choral.errors import UsageError
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import PRIORITIES
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.settings import WorkerSettings
from choral.jobs.worker_queue import StreamEntry, WorkerQueue

log = logging.getLogger("choral.jobs")
INTERACTIVE_IN_A_ROW = 4  # then one batch job, should any wait
MOST_CLAIM_PAUSE_S = 15.0


class JobFetcher:
    def __init__(
        self, ledger: WorkerQueue, steady: RedisRetry, settings: WorkerSettings, metrics: WorkerMetrics
    ) -> None:
        self._ledger, self._steady, self._settings, self._metrics = ledger, steady, settings, metrics
        self._in_a_row = 0
        self._claimed_s = 0.0

    async def take(self, most: int, wait_s: float) -> list[ActiveJob]:
        """At most so many jobs; waits for the first of them, but no longer than `wait_s`."""
        entries = await self._claims(most) if self._may_claim() else []
        entries = entries or await self._waiting(most) or await self._ledger.read(PRIORITIES, 1, wait_s)
        return await self._begin(entries)

    def _may_claim(self) -> bool:
        """Not soon after Redis was away: others, whose silence was not their fault, come first."""
        after_s = self._settings.claim_after_s
        is_due = time.monotonic() - self._claimed_s > min(after_s / 4, MOST_CLAIM_PAUSE_S)
        return is_due and self._steady.steady_s > min(after_s / 2, MOST_CLAIM_PAUSE_S)

    async def _claims(self, most: int) -> list[StreamEntry]:
        entries = await self._ledger.claim(most, self._settings.claim_after_s)
        if len(entries) < most:  # otherwise there may be more, and they have waited longest
            self._claimed_s = time.monotonic()
        for entry in entries:
            self._metrics.claims.inc()
            log.warning("claimed from a worker that is gone", extra={"job": entry.job_id})
        return entries

    async def _waiting(self, most: int) -> list[StreamEntry]:
        entries: list[StreamEntry] = []
        if self._in_a_row >= INTERACTIVE_IN_A_ROW:
            entries += await self._ledger.read(["batch"], max(1, most // (INTERACTIVE_IN_A_ROW + 1)))
            self._in_a_row = 0
        if len(entries) < most:
            interactive = await self._ledger.read(["interactive"], most - len(entries))
            self._in_a_row += len(interactive)
            entries += interactive
        if len(entries) < most:
            entries += await self._ledger.read(["batch"], most - len(entries))
            self._in_a_row = 0
        return entries

    async def _begin(self, entries: Sequence[StreamEntry]) -> list[ActiveJob]:
        jobs = []
        for entry in entries:
            began = await self._begin_one(entry)
            if isinstance(began, ActiveJob):
                jobs.append(began)
            elif began == "dead":
                self._metrics.ended("dead")
                log.error("dead: its workers ended without a word", extra={"job": entry.job_id})
        return jobs

    async def _begin_one(self, entry: StreamEntry) -> ActiveJob | str:
        try:
            return await self._steady.through(lambda: self._ledger.begin(entry, self._settings.max_crashes))
        except UsageError as error:  # of another version of Choral
            refusal = error
        log.error("failed: %s", refusal, extra={"job": entry.job_id})
        return await self._steady.through(lambda: self._ledger.refuse(entry, refusal))
