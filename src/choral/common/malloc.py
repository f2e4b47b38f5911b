"""malloc and the garbage collector, adjusted to a network on a CPU and to processes that run for months.

glibc gives threads arenas of their own, up to eight per core, and each keeps its peak size. Requests and jobs
keep starting new threads, so a service would grow for hours. On other C libraries the malloc functions do nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from choral.common.aio import run_in_thread

MAX_ARENAS = 2
TRIM_EVERY_S = 10.0
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
_LARGE_BYTES, _MAX_OLD_MMAP_THRESHOLD = 2**30, 2**25  # glibc before 2.35 takes no more than the second


def limit_malloc_arenas() -> None:
    """Limit glibc to `MAX_ARENAS` arenas. Call it before the first thread starts."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, MAX_ARENAS)


def keep_large_blocks() -> None:
    """Reuse large blocks that are freed, until `trim_malloc`. Call it before the network's threads start.

    By default glibc returns each to the operating system, which then has to clear its pages again: the encoder's
    intermediate results change their size at every layer, and a third of its time was spent on that. Arenas other than
    the first cannot hold such blocks, so there must be only one.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        if not library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES):
            library.mallopt(_M_MMAP_THRESHOLD, _MAX_OLD_MMAP_THRESHOLD)


def trim_malloc() -> None:
    """Return free heap memory to the operating system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


async def trim_memory_periodically() -> None:
    """Return free heap memory to the system: requests fragment the C heap, and a busy server would grow for hours."""
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await run_in_thread(trim_malloc, "malloc-trim")


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collection; enter it once everything is loaded.

    With torch there are about 300,000 objects, and a full collection stops every thread for 0.2 s.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # frozen objects are never freed at exit, and libraries report them as leaks


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
