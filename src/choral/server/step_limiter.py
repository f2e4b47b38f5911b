"""Spreads a burst of requests over several steps of the event loop, so that a health check does not wait for all of it.

In one step the loop runs everything that is ready. When hundreds of clients send a request at the same moment, that is
a tenth of a second of work, and whatever arrives meanwhile waits for it in each step that it needs.
"""

from __future__ import annotations

import asyncio
from collections import deque


class StepLimiter:
    """Lets `limit` tasks continue in each step, in the order in which they came. Used in one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = self._n_free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False  # the next step will call `_start_step`

    async def wait(self) -> None:
        """Returns at once unless the limit of this step is reached."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._start_step)
        if self._n_free > 0:
            self._n_free -= 1
        else:
            place: asyncio.Future[None] = loop.create_future()
            self._waiting.append(place)
            await place

    def _start_step(self) -> None:
        self._n_free = self._limit
        while self._waiting and self._n_free:
            place = self._waiting.popleft()
            if not place.done():  # cancelled meanwhile
                place.set_result(None)
                self._n_free -= 1
        self._is_scheduled = self._n_free < self._limit
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._start_step)
