"""The live sessions of a server: how many there may be, and their end when the server is shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from choral.server.realtime.measures import LiveMeasures
from choral.server.room import Room

Drain = Callable[[], None]


class LiveSessions:
    """Used in the event loop only."""

    def __init__(self, limit: int, measures: LiveMeasures) -> None:
        self.room = Room(limit, "live sessions")
        self.measures = measures
        self._drains: set[Drain] = set()
        self._has_left = asyncio.Event()

    @contextmanager
    def place(self, drain: Drain) -> Iterator[None]:
        """`drain` asks the session to finish what was said, and then to end."""
        with self.room.place():
            self._drains.add(drain)
            self.measures.sessions.inc()
            try:
                yield
            finally:
                self.measures.sessions.dec()
                self._drains.discard(drain)
                self._has_left.set()

    async def drain(self) -> None:
        """Until all have ended; newcomers are refused from now on."""
        self.room.is_closing = True
        for drain in list(self._drains):
            drain()
        while self._drains:
            self._has_left.clear()
            await self._has_left.wait()
