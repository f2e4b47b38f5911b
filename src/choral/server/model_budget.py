"""A model that is served, and the memory budget: which model gives its memory to one that is to be loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from choral.common.sizes import format_size
from choral.errors import EngineClosed, OutOfMemory, QueueFull
from choral.server.model_loader import LoadedModel, ModelInfo

log = logging.getLogger("choral.server")
RETRY_S = 10  # when all models that are in memory are in use


@dataclass(eq=False)
class PoolEntry:
    """A model that is served."""

    info: ModelInfo
    is_pinned: bool = False
    loaded: LoadedModel | None = None
    loading: asyncio.Task[None] | None = None
    n_users: int = 0
    last_used_s: float = 0.0
    n_loads: int = 0
    memory_bytes: int = 0  # the most that was measured
    error: EngineClosed | None = None  # of the last load
    failed_s: float = 0.0
    idle_timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def is_idle(self) -> bool:
        return self.loaded is not None and self.n_users == 0 and not self.is_pinned

    @property
    def failure(self) -> str | None:
        """Why requests for it fail."""
        if self.loaded is not None:
            return self.loaded.model.failure
        return None if self.error is None else str(self.error)

    def measure(self) -> None:
        if self.loaded is not None:
            self.memory_bytes = max(self.memory_bytes, self.loaded.memory_bytes)


@dataclass(frozen=True)
class MemoryBudget:
    max_bytes: int  # 0: no limit

    def victim_for(self, entry: PoolEntry, entries: Collection[PoolEntry]) -> PoolEntry | None:
        """The model to unload next so that this one can be loaded; None if it fits.

        Before a model was loaded once, the size of its files counts, and of its draft's. A model that fits nowhere is
        loaded alone.
        """
        needed_bytes = entry.memory_bytes or entry.info.weights_bytes
        if not self.max_bytes or self._used_bytes(entries) + needed_bytes <= self.max_bytes:
            return None
        if (idle := _longest_idle(entries)) is not None:
            return idle
        others = [other for other in entries if other.loaded is not None]
        if not others:
            log.warning("the model %s needs more than --models-memory: it is loaded alone", entry.info.id)
            return None
        if all(other.is_pinned for other in others):
            raise OutOfMemory(
                f"the model {entry.info.id} needs about {format_size(needed_bytes)}, which the pinned models leave "
                "no room for: raise --models-memory, or pin fewer models"
            )
        text = f"there is no memory for the model {entry.info.id} while others are in use: try again in {RETRY_S} s"
        raise QueueFull(text, retry_after_s=RETRY_S)

    def victim_after(self, entry: PoolEntry, entries: Collection[PoolEntry]) -> PoolEntry | None:
        """The model to unload once this one is loaded, if it needs more than its files have."""
        if not self.max_bytes or self._used_bytes(entries) <= self.max_bytes:
            return None
        return _longest_idle([other for other in entries if other is not entry])

    def _used_bytes(self, entries: Collection[PoolEntry]) -> int:
        for entry in entries:
            entry.measure()  # engines grow while they work
        return sum(entry.memory_bytes for entry in entries if entry.loaded is not None)


def _longest_idle(entries: Collection[PoolEntry]) -> PoolEntry | None:
    return min((entry for entry in entries if entry.is_idle), key=lambda entry: entry.last_used_s, default=None)
