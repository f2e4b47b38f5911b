"""Redis may go away: a worker then waits and asks again, and nothing that it has done is lost.

One line is logged when Redis goes and one when it is back, whoever notices. A queue that was lost is made anew, and a
connection to what has become a replica is given up for a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from choral.common.backoff import backoff_s
from choral.jobs.redis_connection import RedisError, is_replica, reason
from choral.jobs.worker_queue import WorkerQueue

log = logging.getLogger("choral.jobs")
Answer = TypeVar("Answer")
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class RedisRetry:
    def __init__(self, ledger: WorkerQueue, shown: str) -> None:
        self._ledger, self._shown = ledger, shown
        self._failing: set[object] = set()  # what is being tried again just now
        self._changed_s = time.monotonic()  # when the first of them failed, or the last one got through

    @property
    def steady_s(self) -> float:
        """How long nothing has failed; what others said before that may not have been heard."""
        return 0.0 if self._failing else time.monotonic() - self._changed_s

    async def through(self, action: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the action gives, however long Redis takes to let it."""
        try:
            for n_failures in itertools.count(1):
                try:
                    return await action()
                except RedisError as error:
                    self._note_failure(action, error)
                    await self._mend(error)
                    await asyncio.sleep(backoff_s(n_failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))
        finally:
            self._note_end(action)
        raise AssertionError("counting has no end")

    async def _mend(self, error: RedisError) -> None:
        try:
            if is_replica(error):
                await self._ledger.store.redis.connection_pool.disconnect()
            elif "NOGROUP" in str(error):
                n_jobs = await self._ledger.repair()
                log.warning("the queue was lost and is made anew; jobs put back into it: %d", n_jobs)
        except RedisError:
            return  # the next try of the action meets the same, and is told

    def _note_failure(self, action: object, error: RedisError) -> None:
        if not self._failing:
            self._changed_s = time.monotonic()
            log.warning("Redis at %s %s; trying again until it answers", self._shown, reason(error))
        self._failing.add(action)

    def _note_end(self, action: object) -> None:
        if action in self._failing:
            self._failing.remove(action)
            if not self._failing:
                log.info("Redis is back after %.1f s", time.monotonic() - self._changed_s)
                self._changed_s = time.monotonic()
