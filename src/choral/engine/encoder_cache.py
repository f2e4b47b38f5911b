"""Encoder results by the content of their audio: encoded once, whoever asks and however often. Plain Python.

A result that a window still needs is held and stays. Of the others, those that were not asked for the longest go when
there is no room. Everything takes the same time, however much is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Features = TypeVar("Features")


@dataclass(frozen=True)
class CacheEntry(Generic[Features]):
    features: Features
    n_bytes: int


class EncoderCache(Generic[Features]):
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.n_bytes = 0
        self._entries: dict[bytes, CacheEntry[Features]] = {}
        self._holders: dict[bytes, set[Hashable]] = {}
        self._loose: OrderedDict[bytes, None] = OrderedDict()  # that nobody holds, the least recently used first

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def holders(self) -> set[Hashable]:
        return {holder for holders in self._holders.values() for holder in holders}

    def hold(self, key: bytes, holder: Hashable) -> None:
        """From now until `release` the result stays; it may be held before it is there."""
        self._holders.setdefault(key, set()).add(holder)
        self._loose.pop(key, None)

    def release(self, key: bytes, holder: Hashable) -> None:
        self._holders[key].remove(holder)
        if not self._holders[key]:
            del self._holders[key]
            if key in self._entries:
                self._loose[key] = None
                self._make_room()

    def put(self, key: bytes, features: Features, n_bytes: int) -> None:
        assert key not in self._entries
        self._entries[key] = CacheEntry(features, n_bytes)
        self.n_bytes += n_bytes
        if key not in self._holders:
            self._loose[key] = None
        self._make_room()

    def get(self, key: bytes) -> Features:
        return self._entries[key].features

    def clear(self) -> None:
        """Forgets everything that nobody holds."""
        while self._loose:
            self._drop_oldest()

    def _make_room(self) -> None:
        while self._loose and self.n_bytes > self.budget_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._loose.popitem(last=False)
        self.n_bytes -= self._entries.pop(key).n_bytes

    def check_integrity(self) -> None:
        assert self.n_bytes == sum(entry.n_bytes for entry in self._entries.values()), "bytes are miscounted"
        assert all(self._holders.values()), "a result that nobody holds counts as held"
        assert set(self._loose) == set(self._entries) - set(self._holders), "a result is neither held nor loose"
        assert not self._loose or self.n_bytes <= self.budget_bytes, "over the budget, and not all of it is held"
