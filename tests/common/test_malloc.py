"""Large blocks that are freed are reused: no page of them is cleared twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys, threading
from choral.common.malloc import keep_large_blocks, trim_malloc

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use(n_bytes: int) -> None:
    block = ctypes.c_void_p(library.malloc(ctypes.c_size_t(n_bytes)))
    ctypes.memset(block, 1, n_bytes)
    library.free(block)

def run() -> None:
    for n_bytes in (80_000_000, 60_000_000, 80_000_000):
        before = faults()
        use(n_bytes)
        print(faults() - before)
    trim_malloc()
    before = faults()
    use(80_000_000)
    print(faults() - before)

if sys.argv[1] == "keep":
    keep_large_blocks()
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def page_faults(how: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_large_blocks_are_reused_until_memory_is_trimmed() -> None:
    first, smaller, again, after_trim = page_faults("keep")
    assert smaller + again < 1_000 < first
    assert after_trim > 1_000
    assert min(page_faults("default")) > 1_000
