"""What each API key may still do: requests a minute, minutes of audio in 24 hours, requests at the same time.

Requests are counted by this process from its start; minutes are noted in the `UsageBook`, where there is one, and go on
after a restart. What is refused says when to come back.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from starlette.requests import HTTPConnection

from choral.server.keys import ApiKey
from choral.server.problems import Problem
from choral.server.usage import DAY_S, Heard

MINUTE_S = 60.0
PARALLEL_RETRY_S = 1
Clock = Callable[[], float]
Note = Callable[[Heard], None]


def _forget(entry: Heard) -> None:
    """Where nothing is kept."""


class Meter:
    """Of one key. Changed in the event loop only."""

    def __init__(self, note: Note = _forget, clock: Clock = time.monotonic, calendar: Clock = time.time) -> None:
        self._note, self._clock, self._calendar = note, clock, calendar
        self._starts_s: deque[float] = deque()
        self._heard: deque[Heard] = deque()
        self._heard_s = 0.0
        self._ids: set[str] = set()
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

    def charge(self, key: ApiKey, duration_s: float, job_id: str | None = None) -> None:
        """Before it is transcribed; what would go over the limit is refused and not charged. A job counts once."""
        if job_id in self._ids:
            return
        self._require_minutes(key, duration_s)
        self.add(key, duration_s, job_id)

    def add(self, key: ApiKey, duration_s: float, job_id: str | None = None) -> None:
        """What cannot be refused any more."""
        if key.audio_minutes_per_day and job_id not in self._ids:
            entry = Heard(job_id or secrets.token_hex(8), key.name, self._calendar(), duration_s)
            self.remember(entry)
            self._note(entry)

    def owe(self, key: ApiKey, job_id: str) -> bool:
        """A job whose length others will find out; whether it counts."""
        if key.audio_minutes_per_day:
            self._note(Heard(job_id, key.name, self._calendar(), None))
        return bool(key.audio_minutes_per_day)

    def remember(self, entry: Heard) -> None:
        self._heard.append(entry)
        self._ids.add(entry.id)
        self._heard_s += entry.duration_s or 0.0

    def _require_minutes(self, key: ApiKey, more_s: float) -> None:
        now = self._calendar()
        while self._heard and self._heard[0].at <= now - DAY_S:
            gone = self._heard.popleft()
            self._ids.discard(gone.id)
            self._heard_s -= gone.duration_s or 0.0
        heard_s = self._heard_s if self._heard else 0.0
        limit_s = 60 * key.audio_minutes_per_day
        if limit_s and (heard_s >= limit_s or heard_s + more_s > limit_s):
            wait_s = self._heard[0].at + DAY_S - now if self._heard else DAY_S
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


class Meters:
    """Those of all keys, with what was noted before this process began."""

    def __init__(self, note: Note = _forget, entries: Iterable[Heard] = ()) -> None:
        self._note = note
        self._meters: dict[str, Meter] = {}
        self.owed: list[Heard] = []
        for entry in entries:
            if entry.duration_s is None:
                self.owed.append(entry)
            else:
                self.of(entry.key).remember(entry)

    def of(self, name: str) -> Meter:
        if name not in self._meters:
            self._meters[name] = Meter(self._note)
        return self._meters[name]


def _refused(limit: str, wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(f"{limit}: try again in {seconds} s", status=429, code="rate_limit_exceeded", retry_after_s=seconds)
