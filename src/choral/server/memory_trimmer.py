"""What a server does for itself while it runs: memory that is free goes back to the system, again and again.

Requests leave holes in the C library's heaps; without this a server under load would grow for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from choral.common.aio import cancel_tasks, run_in_thread
from choral.common.malloc import trim_malloc

TRIM_EVERY_S = 10.0


@asynccontextmanager
async def trim_memory() -> AsyncIterator[None]:
    """For as long as it is entered."""
    task = asyncio.create_task(_trim())
    try:
        yield
    finally:
        await cancel_tasks([task])


async def _trim() -> None:
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await run_in_thread(trim_malloc, "heaps")
