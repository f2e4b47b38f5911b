"""Encoder results by the content of their audio: the same audio is encoded once for all callers. Plain Python.

A result that a window still needs is held and stays. The others are evicted, least recently used first, when the cache
exceeds its budget. Every operation takes constant time.
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
        self._evictable: OrderedDict[bytes, None] = OrderedDict()  # not held, the least recently used first

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def holders(self) -> set[Hashable]:
        return {holder for holders in self._holders.values() for holder in holders}

    def hold(self, key: bytes, holder: Hashable) -> None:
        """Keep the result until `release`; it may be held before it is put."""
        self._holders.setdefault(key, set()).add(holder)
        self._evictable.pop(key, None)

    def release(self, key: bytes, holder: Hashable) -> None:
        self._holders[key].remove(holder)
        if not self._holders[key]:
            del self._holders[key]
            if key in self._entries:
                self._evictable[key] = None
                self._evict()

    def put(self, key: bytes, features: Features, n_bytes: int) -> None:
        assert key not in self._entries
        self._entries[key] = CacheEntry(features, n_bytes)
        self.n_bytes += n_bytes
        if key not in self._holders:
            self._evictable[key] = None
        self._evict()

    def get(self, key: bytes) -> Features:
        return self._entries[key].features

    def clear(self) -> None:
        """Drop every result that is not held."""
        while self._evictable:
            self._drop_oldest()

    def _evict(self) -> None:
        while self._evictable and self.n_bytes > self.budget_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._evictable.popitem(last=False)
        self.n_bytes -= self._entries.pop(key).n_bytes

    def check_integrity(self) -> None:
        assert self.n_bytes == sum(entry.n_bytes for entry in self._entries.values()), "bytes are miscounted"
        assert all(self._holders.values()), "a held result has no holder"
        assert set(self._evictable) == set(self._entries) - set(self._holders), "a result is neither held nor evictable"
        assert not self._evictable or self.n_bytes <= self.budget_bytes, "over budget, and not all of it is held"
