"""What each API key may still do: requests a minute, minutes of audio in 24 hours, requests at the same time.

Counted in this process, from its start. What is refused says when to come back.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import HTTPConnection

from choral.server.keys import ApiKey
from choral.server.problems import Problem

MINUTE_S, DAY_S = 60.0, 86_400.0
PARALLEL_RETRY_S = 1
Clock = Callable[[], float]


class Meter:
    """Of one key. Changed in the event loop only."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._starts_s: deque[float] = deque()
        self._heard: deque[tuple[float, float]] = deque()  # when, and how many seconds
        self._n_open = 0

    @contextmanager
    def request(self, key: ApiKey) -> Iterator[None]:
        now_s = self._clock()
        while self._starts_s and self._starts_s[0] <= now_s - MINUTE_S:
            self._starts_s.popleft()
        if 0 < key.requests_per_minute <= len(self._starts_s):
            wait_s = self._starts_s[0] + MINUTE_S - now_s
            raise _refused(f"key {key.name} may send {key.requests_per_minute} requests a minute", wait_s)
        if 0 < key.parallel_requests <= self._n_open:
            limit = f"key {key.name} may have {key.parallel_requests} requests at the same time"
            raise _refused(limit, PARALLEL_RETRY_S)
        self._require_minutes(key, 0.0)
        self._starts_s.append(now_s)
        self._n_open += 1
        try:
            yield
        finally:
            self._n_open -= 1

    def charge(self, key: ApiKey, duration_s: float) -> None:
        """Before it is transcribed; audio that would go over the limit is refused and not charged."""
        self._require_minutes(key, duration_s)
        if key.audio_minutes_per_day:
            self._heard.append((self._clock(), duration_s))

    def _require_minutes(self, key: ApiKey, more_s: float) -> None:
        now_s = self._clock()
        while self._heard and self._heard[0][0] <= now_s - DAY_S:
            self._heard.popleft()
        heard_s = sum(duration_s for _, duration_s in self._heard)
        limit_s = 60 * key.audio_minutes_per_day
        if limit_s and (heard_s >= limit_s or heard_s + more_s > limit_s):
            wait_s = self._heard[0][0] + DAY_S - now_s if self._heard else DAY_S
            raise _refused(
                f"key {key.name} may send {key.audio_minutes_per_day:g} minutes of audio in 24 hours, has sent "
                f"{heard_s / 60:.1f}" + (f", and this is {more_s / 60:.1f} more" if more_s else ""),
                wait_s,
            )


def charge(request: HTTPConnection, duration_s: float) -> None:
    """The audio of this request, or live session, goes on the account of its key, where it has one."""
    charge_key: Callable[[float], None] | None = getattr(request.state, "charge", None)
    if charge_key is not None:
        charge_key(duration_s)


def _refused(limit: str, wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(f"{limit}: try again in {seconds} s", status=429, code="rate_limit_exceeded", retry_after_s=seconds)
