"""How long `/health/live` takes while something else goes on: asked again and again on a connection that is kept.

How late the prober itself was woken, each time, tells how much of it is the machine's.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from choral.bench.http_client import ApiClient

PATH = "/health/live"
EVERY_S = 0.05


class HealthProbe:
    """Asks from a thread of its own between entry and exit. What is not answered well is a failure."""

    def __init__(self, url: str) -> None:
        self.latencies_s: list[float] = []
        self.late_s: list[float] = []
        self.n_failures = 0
        self._caller = ApiClient(url)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="choral-prober", daemon=True)

    def __enter__(self) -> HealthProbe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._caller.close()

    def _ask(self) -> None:
        while not self._waited():
            try:
                status, spent_s = self._caller.look(PATH)
            except OSError:
                self.n_failures += 1
                continue
            self.latencies_s.append(spent_s)
            self.n_failures += status != 200

    def _waited(self) -> bool:
        """Whether it is over."""
        before_s = time.perf_counter()
        is_over = self._is_over.wait(EVERY_S)
        if not is_over:
            self.late_s.append(time.perf_counter() - before_s - EVERY_S)
        return is_over
