"""The C library's memory, kept from growing with every thread that a job has had.

glibc gives threads heaps of their own, up to eight a core, and each keeps what was once needed in it. Jobs come on new
threads all the time, so a worker would grow for hours. Few heaps, and giving back what is free, keep it level.
"""

from __future__ import annotations

import ctypes
import sys

HEAPS = 2
_M_ARENA_MAX = -8


def share_heaps() -> None:
    """Before the first thread is started; elsewhere than on glibc it does nothing."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_ARENA_MAX, HEAPS)


def give_back() -> None:
    """What is free, to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
