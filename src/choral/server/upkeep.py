"""What a server does for itself while it runs: memory that is free goes back to the system, again and again.

Requests leave holes in the C library's heaps; without this a server under load would grow for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from choral.jobs.heaps import give_back
from choral.jobs.tasks import end_tasks, in_thread

TRIM_EVERY_S = 10.0


@asynccontextmanager
async def upkeep() -> AsyncIterator[None]:
    """For as long as it is entered."""
    task = asyncio.create_task(_trim())
    try:
        yield
    finally:
        await end_tasks([task])


async def _trim() -> None:
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await in_thread(give_back, "heaps")
