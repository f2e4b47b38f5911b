"""Wakes waiting clients when their jobs change state: one reader of the event stream serves all of them.

It reads only while there are waiters. Events may be missed (Redis restarts, a connection breaks), so waiters also poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from choral.common.aio import cancel_tasks
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_connection import RedisError

BLOCK_S = 5.0
RETRY_S = 1.0


class EventWatcher:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._waiters: dict[asyncio.Event, frozenset[str]] = {}
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, job_ids: Sequence[str]) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever one of these jobs changes state."""
        changed = asyncio.Event()
        self._waiters[changed] = frozenset(job_ids)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield changed
        finally:
            del self._waiters[changed]
            if not self._waiters:
                await self.close()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await cancel_tasks([reader])

    async def _read(self) -> None:
        event_id: str | None = None
        while True:
            try:
                if event_id is None:
                    event_id = await self._queue.last_event_id()
                    self._wake(None)  # events before this one are not read: every waiter checks its jobs
                event_id, changed_ids = await self._queue.events_after(event_id, BLOCK_S)
                self._wake(changed_ids)
            except RedisError:  # the waiters meet the same error in their own calls and raise it
                event_id = None
                await asyncio.sleep(RETRY_S)

    def _wake(self, changed_ids: set[str] | None) -> None:
        for changed, job_ids in self._waiters.items():
            if changed_ids is None or not job_ids.isdisjoint(changed_ids):
                changed.set()
