"""Cancel a request's work when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

Result = TypeVar("Result")
EXTENSION = "choral.disconnect"  # of the scope: the `DisconnectWatch` of the request


class ClientClosedRequest(Exception):
    """The client disconnected before the response."""


class DisconnectWatch:
    """Told by the server when the client disconnects: a task that waits for ASGI's message would cost more."""

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None
        self.has_disconnected = False

    def notify(self) -> None:
        self.has_disconnected = True
        if self.callback is not None:
            self.callback()


async def cancel_on_disconnect(scope: Scope, receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, which is cancelled if the client disconnects.

    The request body must have been read to its end: the only message that can still arrive is the disconnect.
    """
    timeout = asyncio.timeout(None)  # the watch ends it, which cancels the work but not the task around it
    watch: DisconnectWatch | None = scope.get("extensions", {}).get(EXTENSION)
    waiting = asyncio.create_task(_end_on_disconnect(receive, timeout)) if watch is None else None
    try:
        async with timeout:
            if watch is not None:
                watch.callback = lambda: timeout.reschedule(0)
                if watch.has_disconnected:
                    watch.callback()
            return await work
    except TimeoutError as error:
        if timeout.expired():
            raise ClientClosedRequest from error
        raise
    finally:
        if watch is not None:
            watch.callback = None
        if waiting is not None:
            waiting.cancel()


async def _end_on_disconnect(receive: Receive, timeout: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    timeout.reschedule(0)
