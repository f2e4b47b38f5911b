"""Lanes of the prep pool: requests with a waiting client and jobs use separate threads and shares of the processes.

So neither keeps the other waiting, however long its files take. In each lane one host gets at most its share of the
downloads: a server that sends slowly delays only its own files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from choral.audio.prep.settings import PrepSettings


class Lane:
    def __init__(self, settings: PrepSettings, name: str, timeout_s: float | None = None) -> None:
        """`timeout_s` limits downloading and decoding beyond the settings."""
        longest_s = float("inf") if timeout_s is None else timeout_s
        self.fetch_timeout_s = min(settings.fetch_timeout_s, longest_s)
        self.decode_timeout_s = min(settings.decode_timeout_s, longest_s)
        self.hosts = HostLimiter(settings.n_fetches_per_host)
        self.process_slots = threading.Semaphore(settings.n_processes)
        self._fetch_threads = ThreadPoolExecutor(settings.fetches, f"choral-fetch-{name}")
        self._local_threads = ThreadPoolExecutor(settings.n_processes, f"choral-prep-{name}")

    def start(self, work: Callable[[], None], host: str | None) -> None:
        """Run the work on a thread. With a host, it must call `hosts.release` when its download has ended."""
        if host is None:
            self._local_threads.submit(work)
        else:
            self.hosts.acquire(host, lambda: self._fetch_threads.submit(work))

    def close(self) -> None:
        """Waits for the threads. Work that waits for its host is dropped."""
        self.hosts.close()
        self._fetch_threads.shutdown()
        self._local_threads.shutdown()


class HostLimiter:
    """Starts the downloads of one host up to a limit; the others wait in order, without a thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._n_running: dict[str, int] = {}
        self._waiting: dict[str, deque[Callable[[], object]]] = {}
        self._is_closed = False

    def acquire(self, host: str, start: Callable[[], object]) -> None:
        with self._lock:
            if self._n_running.get(host, 0) >= self._limit:
                self._waiting.setdefault(host, deque()).append(start)
                return
            start()
            self._n_running[host] = self._n_running.get(host, 0) + 1

    def release(self, host: str) -> None:
        with self._lock:
            if (waiting := self._waiting.get(host)) and not self._is_closed:
                waiting.popleft()()
                if not waiting:
                    del self._waiting[host]
                return
            self._n_running[host] -= 1
            if not self._n_running[host]:
                del self._n_running[host]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
