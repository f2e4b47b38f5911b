"""Admission control: bound the work in progress, and tell refused clients when to retry.

`require_capacity` refuses a request before any of its body is read. The Retry-After estimate is the time in which about
half of the work in progress should finish: earlier finds no capacity, later leaves the device idle.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from choral.errors import EngineClosed, QueueFull

RATE_WINDOW_S = 60.0
MIN_RETRY_S, MAX_RETRY_S = 1, 120


class CompletionRate:
    """How fast work was finished over the last minute. Used in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()  # time, total finished by then

    def restart(self) -> None:
        """Drop the history when work starts after an idle period, which says nothing about the rate."""
        n_done = self._points[-1][1] if self._points else 0
        self._points.clear()
        self.record(n_done)

    def record(self, n_done: int) -> None:
        """Add a sample of the total finished so far."""
        now_s = self._clock()
        self._points.append((now_s, n_done))
        while len(self._points) > 1 and self._points[0][0] < now_s - RATE_WINDOW_S:
            self._points.popleft()

    def retry_after_s(self, n_active: int) -> int:
        """Whole seconds until about half of the active work should be done.

        Before anything has finished, the estimate grows with the time since the start.
        """
        if not self._points:
            return MIN_RETRY_S
        (then_s, done_then), (_, done_now) = self._points[0], self._points[-1]
        each_s = (self._clock() - then_s) / max(1, done_now - done_then)
        return max(MIN_RETRY_S, min(MAX_RETRY_S, math.ceil(each_s * n_active / 2)))


class AdmissionControl:
    """Counts the active work of one kind against a limit. Used in the event loop only."""

    def __init__(self, limit: int, kind: str) -> None:
        self.limit, self._kind = limit, kind
        self.n_active = self._n_done = 0
        self.is_closing = False
        self._rate = CompletionRate()

    def require_capacity(self) -> None:
        """Refuse a new request: `EngineClosed` during shutdown, `QueueFull` at the limit."""
        if self.is_closing:
            raise EngineClosed("the server is shutting down: try again later, or use another server")
        self._require_below_limit()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count as active. Allowed during shutdown: requests that were accepted may finish."""
        self._require_below_limit()
        if self.n_active == 0:
            self._rate.restart()
        self.n_active += 1
        try:
            yield
        finally:
            self.n_active -= 1
            self._n_done += 1
            self._rate.record(self._n_done)

    def _require_below_limit(self) -> None:
        if self.n_active >= self.limit:
            wait_s = self._rate.retry_after_s(self.n_active)
            text = f"{self.n_active} {self._kind} are already in progress: try again in {wait_s} s"
            raise QueueFull(text, retry_after_s=wait_s)
