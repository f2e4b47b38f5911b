"""Who waits for which jobs: one reader of the events in Redis wakes all of them, however many there are.

It reads only while somebody waits. An event may be missed (Redis restarts, a connection is cut): whoever waits also
looks for himself now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from choral.common.aio import cancel_tasks
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_connection import RedisError

BLOCK_S = 5.0
PAUSE_S = 1.0  # after a failure


class EventWatcher:
    def __init__(self, store: JobQueue) -> None:
        self._store = store
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, job_ids: Sequence[str]) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever one of these jobs has changed its state."""
        changed = asyncio.Event()
        self._waiting[changed] = frozenset(job_ids)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield changed
        finally:
            del self._waiting[changed]
            if not self._waiting:
                await self.close()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await cancel_tasks([reader])

    async def _read(self) -> None:
        last: str | None = None
        while True:
            try:
                if last is None:
                    last = await self._store.last_event()
                    self._wake(None)  # what happened before is not told: look once more
                last, ids = await self._store.events_after(last, BLOCK_S)
                self._wake(ids)
            except RedisError:  # whoever waits finds out by himself, and says so
                last = None
                await asyncio.sleep(PAUSE_S)

    def _wake(self, ids: set[str] | None) -> None:
        for changed, wanted in self._waiting.items():
            if ids is None or not wanted.isdisjoint(ids):
                changed.set()
