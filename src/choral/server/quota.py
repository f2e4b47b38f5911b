"""Quotas of API keys: requests per minute, concurrent requests, and minutes of audio in 24 hours.

Requests are counted by this process from its start; audio is recorded with the `UsageWriter`, if there is one, and
survives a restart. A refusal says when to retry. `principal_of(request)` is how routes find their caller.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.datastructures import State

from choral.common.aio import LoopSupervisor
from choral.server.api_errors import ApiError
from choral.server.api_keys import ApiKey, ApiKeyStore
from choral.server.usage import DAY_S, UsageEntry, open_usage

MINUTE_S = 60.0
CONCURRENCY_RETRY_S = 1
Clock = Callable[[], float]
RecordUsage = Callable[[UsageEntry], None]


class KeyQuota:
    """The quota of one key. Used in the event loop only."""

    def __init__(
        self,
        record: RecordUsage = lambda entry: None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ) -> None:
        self._record, self._clock, self._wall_clock = record, clock, wall_clock
        self._request_starts_s: deque[float] = deque()
        self._entries: deque[UsageEntry] = deque()  # of the last 24 hours
        self._used_s = 0.0
        self._charged_ids: set[str] = set()
        self._n_active = 0

    @contextmanager
    def request(self, key: ApiKey) -> Iterator[None]:
        now_s = self._clock()
        while self._request_starts_s and self._request_starts_s[0] <= now_s - MINUTE_S:
            self._request_starts_s.popleft()
        if 0 < key.requests_per_minute <= len(self._request_starts_s):
            wait_s = self._request_starts_s[0] + MINUTE_S - now_s
            raise _over_limit(f"key {key.name} is limited to {key.requests_per_minute} requests per minute", wait_s)
        if 0 < key.parallel_requests <= self._n_active:
            limit = f"key {key.name} is limited to {key.parallel_requests} concurrent requests"
            raise _over_limit(limit, CONCURRENCY_RETRY_S)
        self._require_audio(key, 0.0)
        self._request_starts_s.append(now_s)
        self._n_active += 1
        try:
            yield
        finally:
            self._n_active -= 1

    def charge(self, key: ApiKey, duration_s: float, job_id: str | None = None) -> None:
        """Charge audio before it is transcribed; over the limit it is refused and not charged. A job counts once."""
        if job_id in self._charged_ids:
            return
        self._require_audio(key, duration_s)
        self.add(key, duration_s, job_id)

    def add(self, key: ApiKey, duration_s: float, job_id: str | None = None) -> None:
        """Charge audio that is already transcribed, without a limit."""
        if key.audio_minutes_per_day and job_id not in self._charged_ids:
            entry = UsageEntry(job_id or secrets.token_hex(8), key.name, self._wall_clock(), duration_s)
            self.restore(entry)
            self._record(entry)

    def charge_used(self, key: ApiKey, duration_s: float) -> None:
        """Charge audio that was already accepted, then raise if the limit is reached."""
        self.add(key, duration_s)
        self._require_audio(key, 0.0)

    def defer(self, key: ApiKey, job_id: str) -> bool:
        """Record a job whose duration is not known yet; False: this key is not charged for audio."""
        if key.audio_minutes_per_day:
            self._record(UsageEntry(job_id, key.name, self._wall_clock(), None))
        return bool(key.audio_minutes_per_day)

    def restore(self, entry: UsageEntry) -> None:
        """Count an entry that is already recorded."""
        self._entries.append(entry)
        self._charged_ids.add(entry.id)
        self._used_s += entry.duration_s or 0.0

    def _require_audio(self, key: ApiKey, more_s: float) -> None:
        now = self._wall_clock()
        while self._entries and self._entries[0].at <= now - DAY_S:
            expired = self._entries.popleft()
            self._charged_ids.discard(expired.id)
            self._used_s -= expired.duration_s or 0.0
        used_s = self._used_s if self._entries else 0.0
        limit_s = 60 * key.audio_minutes_per_day
        if limit_s and (used_s >= limit_s or used_s + more_s > limit_s):
            wait_s = self._entries[0].at + DAY_S - now if self._entries else DAY_S
            raise _over_limit(
                f"key {key.name} is limited to {key.audio_minutes_per_day:g} minutes of audio in 24 hours and has used "
                f"{used_s / 60:.1f}" + (f"; this audio is {more_s / 60:.1f} more" if more_s else ""),
                wait_s,
            )


def _over_limit(limit: str, wait_s: float) -> ApiError:
    seconds = max(1, math.ceil(wait_s))
    return ApiError(f"{limit}: try again in {seconds} s", status=429, code="rate_limit_exceeded", retry_after_s=seconds)


class KeyQuotas:
    """The quotas of all keys, starting from the recorded usage."""

    def __init__(self, record: RecordUsage = lambda entry: None, entries: Iterable[UsageEntry] = ()) -> None:
        self._record = record
        self._quotas: dict[str, KeyQuota] = {}
        self.deferred: list[UsageEntry] = []  # jobs of an earlier run whose duration is not known yet
        for entry in entries:
            if entry.duration_s is None:
                self.deferred.append(entry)
            else:
                self.of(entry.key).restore(entry)

    def of(self, key_name: str) -> KeyQuota:
        if key_name not in self._quotas:
            self._quotas[key_name] = KeyQuota(self._record)
        return self._quotas[key_name]


@asynccontextmanager
async def open_quotas(keys: ApiKeyStore, folder: Path, loops: LoopSupervisor) -> AsyncIterator[KeyQuotas]:
    """Usage is kept in the folder if keys can have limits."""
    if not keys.has_limits:
        yield KeyQuotas()
        return
    async with open_usage(folder, loops) as (writer, entries):
        yield KeyQuotas(writer.add, entries)


@dataclass(frozen=True)
class Principal:
    """The caller of a request: its API key with that key's quota, or neither if the server requires no keys."""

    key: ApiKey | None
    quota: KeyQuota | None

    @property
    def name(self) -> str | None:
        return None if self.key is None else self.key.name

    @property
    def has_audio_limit(self) -> bool:
        return self.key is not None and self.key.audio_minutes_per_day > 0

    def charge(self, duration_s: float) -> None:
        """Charge audio before it is transcribed; raises the `ApiError` of an exhausted quota."""
        if self.key is not None and self.quota is not None:
            self.quota.charge(self.key, duration_s)

    def charge_used(self, duration_s: float) -> None:
        """Charge audio that was already accepted; raises the `ApiError` of a quota that is exhausted now."""
        if self.key is not None and self.quota is not None:
            self.quota.charge_used(self.key, duration_s)


ANONYMOUS = Principal(None, None)


class HasState(Protocol):
    """An HTTP request, a WebSocket, or an adapter of one."""

    @property
    def state(self) -> State: ...


def principal_of(connection: HasState) -> Principal:
    """The principal that the middleware put into the request or WebSocket."""
    principal: Principal = connection.state.principal
    return principal
