"""Cancel a request's work when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientClosedRequest(Exception):
    """The client disconnected before the response."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, which is cancelled if the client disconnects.

    The request body must have been read to its end: the only message that can still arrive is the disconnect.
    """
    scope = asyncio.timeout(None)  # the watch ends it, which cancels the work but not the task around it
    watch = asyncio.create_task(_end_on_disconnect(receive, scope))
    try:
        async with scope:
            return await work
    except TimeoutError as error:
        if scope.expired():
            raise ClientClosedRequest from error
        raise
    finally:
        watch.cancel()


async def _end_on_disconnect(receive: Receive, scope: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(0)
