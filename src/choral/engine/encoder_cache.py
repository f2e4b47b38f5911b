"""Encoder results by the content of their audio: encoded once, whoever asks and however often. Plain Python.

A result that a window still needs is held and stays. Of the others, those that were not asked for the longest go when
there is no room. What is counted (bytes, holders) is derived from the entries, so it cannot disagree with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Features = TypeVar("Features")


@dataclass(frozen=True)
class Entry(Generic[Features]):
    features: Features
    n_bytes: int


class EncoderCache(Generic[Features]):
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._entries: OrderedDict[bytes, Entry[Features]] = OrderedDict()  # the least recently used first
        self._holders: dict[bytes, set[Hashable]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def n_bytes(self) -> int:
        return sum(entry.n_bytes for entry in list(self._entries.values()))  # may be read by any thread

    @property
    def holders(self) -> set[Hashable]:
        return {holder for holders in self._holders.values() for holder in holders}

    def hold(self, key: bytes, holder: Hashable) -> None:
        """From now until `release` the result stays; it may be held before it is there."""
        self._holders.setdefault(key, set()).add(holder)
        if key in self._entries:
            self._entries.move_to_end(key)

    def release(self, key: bytes, holder: Hashable) -> None:
        self._holders[key].remove(holder)
        if not self._holders[key]:
            del self._holders[key]
        self._make_room()

    def put(self, key: bytes, features: Features, n_bytes: int) -> None:
        self._entries[key] = Entry(features, n_bytes)
        self._entries.move_to_end(key)
        self._make_room()

    def get(self, key: bytes) -> Features:
        return self._entries[key].features

    def clear(self) -> None:
        """Forgets everything that nobody holds."""
        for key in [key for key in self._entries if key not in self._holders]:
            del self._entries[key]

    def _make_room(self) -> None:
        excess = self.n_bytes - self.budget_bytes
        for key in [key for key in self._entries if key not in self._holders]:
            if excess <= 0:
                break
            excess -= self._entries.pop(key).n_bytes

    def check_integrity(self) -> None:
        assert all(self._holders.values()), "a result that nobody holds counts as held"
        loose = [key for key in self._entries if key not in self._holders]
        assert not loose or self.n_bytes <= self.budget_bytes, "over the budget, and not all of it is held"
