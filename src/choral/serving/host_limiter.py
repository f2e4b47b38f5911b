"""Limits the downloads from one host: a server that sends slowly delays only its own files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit


class HostLimiter:
    """Starts the downloads of one host up to a limit; the others wait in order, without a thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._n_running: dict[str, int] = {}
        self._waiting: dict[str, deque[Callable[[], object]]] = {}

    def acquire(self, host: str, start: Callable[[], object]) -> None:
        with self._lock:
            if self._n_running.get(host, 0) >= self._limit:
                self._waiting.setdefault(host, deque()).append(start)
                return
            start()
            self._n_running[host] = self._n_running.get(host, 0) + 1

    def release(self, host: str) -> None:
        with self._lock:
            if waiting := self._waiting.get(host):
                waiting.popleft()()
                if not waiting:
                    del self._waiting[host]
                return
            self._n_running[host] -= 1
            if not self._n_running[host]:
                del self._n_running[host]


def host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""  # the download fails with a message about the address
