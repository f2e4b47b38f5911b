"""Requests of a runtime for callers in an event loop: events arrive in the loop, and many of them with one wake-up.

Waking a loop from another thread costs a system call, so the loop is woken once for all events that wait for it. It
applies a few of them at a time: engines end many requests at once, and other connections must not wait for them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Protocol

from choral.serving.request_events import (
    OnEvent,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TranscribeRequest,
)
from choral.transcript import Transcript

MAX_EVENTS_PER_STEP = 8  # of the loop; a request has at least two


class RequestStarter(Protocol):
    """A `Runtime`, or a `RequestPool`."""

    def start(self, request: TranscribeRequest, on_event: OnEvent) -> Any: ...


class AsyncRequests:
    """Used in one event loop, which need not run yet."""

    def __init__(self, starter: RequestStarter) -> None:
        self._starter = starter
        self._waiting: deque[tuple[Callable[[RequestEvent], None], RequestEvent]] = deque()
        self._is_awake = False  # the loop will look at the events that wait
        self._thread_id = 0  # of the loop

    async def transcribe(self, request: TranscribeRequest, on_event: OnEvent) -> Transcript:
        """`on_event` gets all events but the last, in the loop and in the caller's context, before this returns.

        Cancelling the task that awaits this cancels the request; so does an exception in `on_event`, which is raised.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        self._thread_id = threading.get_ident()
        ended: asyncio.Future[Transcript] = loop.create_future()

        def apply(event: RequestEvent) -> None:
            if not ended.done():
                try:
                    context.run(apply_event, event, ended, on_event)
                except Exception as error:
                    ended.set_exception(error)

        handle = self._starter.start(request, lambda event: self._post(loop, apply, event))
        try:
            return await ended
        except BaseException:
            handle.cancel()  # no effect if it has ended
            raise

    def _post(
        self, loop: asyncio.AbstractEventLoop, apply: Callable[[RequestEvent], None], event: RequestEvent
    ) -> None:
        """From any thread."""
        self._waiting.append((apply, event))
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                if threading.get_ident() == self._thread_id:
                    loop.call_soon(self._apply_waiting)
                else:
                    loop.call_soon_threadsafe(self._apply_waiting)

    def _apply_waiting(self) -> None:
        for _ in range(min(len(self._waiting), MAX_EVENTS_PER_STEP)):
            apply, event = self._waiting.popleft()
            apply(event)
        if not self._waiting:
            self._is_awake = False  # an event that is added from here on needs another wake-up
        if self._waiting:
            self._is_awake = True
            asyncio.get_running_loop().call_soon(self._apply_waiting)


def apply_event(event: RequestEvent, ended: asyncio.Future[Transcript], on_event: OnEvent) -> None:
    if isinstance(event, RequestFinished):
        ended.set_result(event.transcript)
    elif not isinstance(event, RequestFailed):
        on_event(event)
    elif isinstance(event.error, CancelledError):
        ended.cancel()
    else:
        ended.set_exception(event.error)
