"""Requests that wait for a process, in two lanes: those whose client waits for the answer, and jobs.

Each lane has its own share of every process, so neither keeps the other waiting, however long its files take. In each
lane one host gets at most its share of the downloads: a server that sends slowly delays only its own files.
"""

from __future__ import annotations

from collections import deque

from choral.serving.host_limiter import HostLimiter
from choral.serving.pooled_request import PooledRequest


class RequestLane:
    """Belongs to the pool's thread."""

    def __init__(self, max_fetches: int, max_fetches_per_host: int) -> None:
        self.local: deque[PooledRequest] = deque()  # ready to be decoded
        self.remote: deque[PooledRequest] = deque()  # to be fetched, permitted by their host's limit
        self._max_fetches, self._n_fetching = max_fetches, 0
        self._hosts = HostLimiter(max_fetches_per_host)

    def add(self, request: PooledRequest) -> None:
        if request.host is None:
            self.local.append(request)
        else:
            self._hosts.acquire(request.host, lambda: self.remote.append(request))

    def next_local(self) -> PooledRequest | None:
        """The first that was not cancelled; it stays first until `pop_local`."""
        while self.local and self.local[0].is_done:
            self.local.popleft()
        return self.local[0] if self.local else None

    def next_remote(self) -> PooledRequest | None:
        while self.remote and self.remote[0].is_done:
            self._release_host(self.remote.popleft())
        return self.remote[0] if self.remote and self._n_fetching < self._max_fetches else None

    def start_fetch(self, request: PooledRequest) -> None:
        assert self.remote.popleft() is request
        self._n_fetching += 1
        request.is_fetching = True

    def end_fetch(self, request: PooledRequest) -> None:
        """When its download has ended in any way; no effect if it has none."""
        if request.is_fetching:
            request.is_fetching = False
            self._n_fetching -= 1
            self._release_host(request)

    def _release_host(self, request: PooledRequest) -> None:
        assert request.host is not None
        self._hosts.release(request.host)
