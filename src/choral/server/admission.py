"""Admission control: bound the work in progress, and tell refused clients when to retry.

`require_capacity` refuses a request before any of its body is read. The Retry-After estimate is the time in which about
half of the work in progress should finish: earlier finds no capacity, later leaves the device idle.
`UploadAdmission` gives the place of a slow upload to the next one, so that slow clients cannot hold all of them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from choral.errors import EngineClosed, QueueFull

RATE_WINDOW_S = 60.0
MIN_RETRY_S, MAX_RETRY_S = 1, 120
UPLOAD_GRACE_S = 5.0  # an upload is not called slow before


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


class UploadSlot:
    """The place of one upload, with its progress."""

    def __init__(self, started_s: float) -> None:
        self.started_s, self.n_bytes = started_s, 0
        self.is_reading, self.is_evicted = True, False
        self.timeout: asyncio.Timeout | None = None  # while the next piece is awaited

    def bytes_per_s(self, now_s: float) -> float:
        return self.n_bytes / (now_s - self.started_s)

    def evict(self) -> None:
        self.is_evicted = True
        if self.timeout is not None:
            self.timeout.reschedule(0)  # now


class UploadAdmission(AdmissionControl):
    """When all places are taken, the slowest upload below `min_rate` bytes per second gives its place to a new one."""

    def __init__(self, limit: int, min_rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(limit, "uploads")
        self._min_rate, self._clock = min_rate, clock
        self._slots: set[UploadSlot] = set()

    @contextmanager
    def admit_upload(self) -> Iterator[UploadSlot]:
        if self.n_active >= self.limit and (slowest := self._slowest()) is not None:
            self._slots.discard(slowest)
            self.n_active -= 1
            slowest.evict()
        with self.admit():
            slot = UploadSlot(self._clock())
            self._slots.add(slot)
            try:
                yield slot
            finally:
                self._slots.discard(slot)
                self.n_active += slot.is_evicted  # it was subtracted when its place was given away

    def _require_below_limit(self) -> None:
        if self.n_active < self.limit or self._slowest() is None:
            super()._require_below_limit()

    def _slowest(self) -> UploadSlot | None:
        """The slowest upload of those that may be evicted."""
        now_s = self._clock()
        slow = [
            slot
            for slot in self._slots
            if slot.is_reading and now_s - slot.started_s >= UPLOAD_GRACE_S and slot.bytes_per_s(now_s) < self._min_rate
        ]
        return min(slow, key=lambda slot: slot.bytes_per_s(now_s), default=None)
