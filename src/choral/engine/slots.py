"""Decoder slots: which window holds which rows of the decoder's batch."""

from __future__ import annotations

from collections.abc import Hashable


class Slots:
    """Assigns slot numbers to holders."""

    def __init__(self, n_slots: int) -> None:
        assert n_slots > 0
        self.n_slots = n_slots
        self._free = list(range(n_slots))[::-1]
        self._held: dict[Hashable, tuple[int, ...]] = {}

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def holders(self) -> set[Hashable]:
        return set(self._held)

    def take(self, holder: Hashable, n_slots: int) -> tuple[int, ...]:
        """The lowest free slots, so that a small batch stays close together in memory."""
        assert holder not in self._held
        assert n_slots <= self.n_free
        taken = tuple(self._free.pop() for _ in range(n_slots))
        if taken:
            self._held[holder] = taken
        return taken

    def release(self, holder: Hashable) -> None:
        self._free = sorted([*self._free, *self._held.pop(holder, ())], reverse=True)

    def check_integrity(self) -> None:
        """Every slot is free or held, once."""
        held = [slot for slots in self._held.values() for slot in slots]
        assert sorted([*held, *self._free]) == list(range(self.n_slots)), f"held {held}, free {self._free}"
