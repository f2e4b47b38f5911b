"""Work for a client that may go away: as soon as it has, the work is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from choral.common.aio import cancel_tasks

Answer = TypeVar("Answer")


class ClientClosedRequest(Exception):
    """Nobody is there to be answered."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work gives. The request must have been read to its end: nothing but its end can come then."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientClosedRequest
    finally:
        await cancel_tasks([task, gone])


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
