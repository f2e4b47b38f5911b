"""How much memory this process takes, at its highest while something runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

from choral.errors import MissingDependency

EVERY_S = 0.02
STATM = Path("/proc/self/statm")


class PeakMemory:
    """Watches from a thread of its own between entry and exit; exact within what comes and goes in 20 ms."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="choral-peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self.peak_bytes = resident_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(EVERY_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


def resident_bytes() -> int:
    """Memory that is really taken; on systems without /proc the most that ever was."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return _most_ever_bytes()


def _most_ever_bytes() -> int:
    import sys

    try:
        import resource
    except ImportError as error:
        raise MissingDependency("memory cannot be measured on this system: use Linux or macOS") from error
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
