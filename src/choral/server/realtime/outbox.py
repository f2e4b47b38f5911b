"""The bounded queue of messages to a client, filled on the session's thread and emptied in the event loop.

Above the low mark the connection stops reading from the client, so a client that sends without reading waits instead of
filling the memory. Beyond the limits, which then only results of the engine can reach, the queue overflows: its
messages are dropped, and the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from choral.server.realtime.server_events import Event

MAX_UNSENT, MAX_UNSENT_BYTES = 4096, 2 * 2**20
LOW_UNSENT, LOW_UNSENT_BYTES = 1024, 512 * 2**10  # from here on the client is not read


@dataclass(frozen=True)
class CloseConnection:
    code: int
    reason: str


class Outbox:
    def __init__(self, *, on_taken: Callable[[], None], on_overflow: Callable[[], None]) -> None:
        """The callbacks run in the event loop; `on_taken` when a message has left the queue."""
        self._loop, self._on_taken, self._on_overflow = asyncio.get_running_loop(), on_taken, on_overflow
        self._lock = threading.Lock()
        self._messages: deque[str | CloseConnection] = deque()
        self._n_bytes = 0
        self._has_messages = asyncio.Event()

    @property
    def is_low(self) -> bool:
        return len(self._messages) < LOW_UNSENT and self._n_bytes < LOW_UNSENT_BYTES

    def put(self, message: Event | CloseConnection) -> None:
        """Called on any thread."""
        # ASCII, because an event may quote a lone surrogate that the client sent.
        queued = message if isinstance(message, CloseConnection) else json.dumps(message)
        with self._lock:
            if len(self._messages) >= MAX_UNSENT or self._n_bytes >= MAX_UNSENT_BYTES:
                self._messages.clear()
                self._n_bytes = 0
                call_in_loop(self._loop, self._on_overflow)
            self._messages.append(queued)
            self._n_bytes += _size(queued)
            if len(self._messages) == 1:
                call_in_loop(self._loop, self._has_messages.set)

    async def get(self) -> str | CloseConnection:
        while not self._messages:
            self._has_messages.clear()
            await self._has_messages.wait()
        with self._lock:
            message = self._messages.popleft()
            self._n_bytes -= _size(message)
        self._on_taken()
        return message


def _size(message: str | CloseConnection) -> int:
    return len(message) if isinstance(message, str) else 0


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)
