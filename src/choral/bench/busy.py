"""How long something had work, where several may work at once: the time in which at least one did."""

from __future__ import annotations

import threading
import time
from types import TracebackType


class BusyTime:
    """A `with` around every call: time in which two overlap counts once."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._lock = threading.Lock()
        self._n_active = 0
        self._since_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_active == 0:
                self._since_s = time.perf_counter()
            self._n_active += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._n_active -= 1
            if self._n_active == 0:
                self.busy_s += time.perf_counter() - self._since_s
