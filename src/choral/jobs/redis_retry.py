"""Repeats Redis calls until they succeed, so that a worker survives restarts, fail-overs and network outages.

An outage is logged once when it begins and once when it ends. Lost consumer groups are created again, and connections
to a server that has become a replica are closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from choral.common.backoff import backoff_s
from choral.jobs.redis_connection import RedisError, describe_error, is_replica
from choral.jobs.worker_queue import WorkerQueue

log = logging.getLogger("choral.jobs")
T = TypeVar("T")
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0


class RedisRetry:
    def __init__(self, queue: WorkerQueue, address: str) -> None:
        self._queue, self._address = queue, address
        self._failing: set[object] = set()  # calls that are being retried
        self._changed_s = time.monotonic()  # when the current outage began, or the last one ended

    @property
    def healthy_s(self) -> float:
        """Seconds without a failure; 0 during an outage."""
        return 0.0 if self._failing else time.monotonic() - self._changed_s

    async def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Await `action()`, repeated with back-off until it raises no `RedisError`."""
        try:
            for n_failures in itertools.count(1):
                try:
                    return await action()
                except RedisError as error:
                    self._note_failure(action, error)
                    await self._repair(error)
                    await asyncio.sleep(backoff_s(n_failures, FIRST_PAUSE_S, MAX_PAUSE_S))
        finally:
            self._note_end(action)
        raise AssertionError("unreachable: the count is infinite")

    async def _repair(self, error: RedisError) -> None:
        try:
            if is_replica(error):
                await self._queue.jobs.redis.connection_pool.disconnect()
            elif "NOGROUP" in str(error):
                n_jobs = await self._queue.rebuild()
                log.warning("the queue in Redis was lost and has been rebuilt with %d jobs", n_jobs)
        except RedisError:
            return  # the next attempt of the action raises it again

    def _note_failure(self, action: object, error: RedisError) -> None:
        if not self._failing:
            self._changed_s = time.monotonic()
            log.warning("Redis at %s %s; retrying until it responds", self._address, describe_error(error))
        self._failing.add(action)

    def _note_end(self, action: object) -> None:
        if action in self._failing:
            self._failing.remove(action)
            if not self._failing:
                log.info("Redis is back after %.1f s", time.monotonic() - self._changed_s)
                self._changed_s = time.monotonic()
