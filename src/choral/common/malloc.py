"""Memory of a service: the C library's, kept from growing with every thread that a job has had, and Python's.

glibc gives threads heaps of their own, up to eight a core, and each keeps what was once needed in it. Jobs come on new
threads all the time, so a worker would grow for hours. Few heaps, and giving back what is free, keep it level.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HEAPS = 2
_M_ARENA_MAX = -8


def limit_malloc_arenas() -> None:
    """Before the first thread is started; elsewhere than on glibc it does nothing."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, HEAPS)


def trim_malloc() -> None:
    """What is free, to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@contextmanager
def frozen_gc() -> Iterator[None]:
    """For as long as it is entered, collections of garbage leave out what is there now, once all is loaded.

    With torch there are some 300,000 objects, and to look through them stops every thread for 0.2 s.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # what is left out at the end is never freed, and libraries report it as their leak


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
