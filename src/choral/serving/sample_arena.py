"""Samples of windows in shared memory: a client writes each window once, and the engine reads it in place.

The client owns the memory, a sealed memfd with one slot per window in flight; the engine's process maps it read-only.
Pages exist from their first use until the arena is idle, so an arena takes the memory of the windows that were in
flight together, and never more than all its slots.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import numpy.typing as npt

from choral.audio.constants import WINDOW_SAMPLES
from choral.audio.mel import HALF_FRAME

MAX_WINDOW_SAMPLES = WINDOW_SAMPLES + 2 * HALF_FRAME
SAMPLE_BYTES = 4
SLOT_BYTES = -(-MAX_WINDOW_SAMPLES * SAMPLE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
N_SLOTS = 256  # of a client; further windows wait on its side
MAX_SLOTS = 4096
KEPT_SLOTS = 4  # whose pages stay when the arena is idle
# Without the first, a client could cut the file and crash the engine, which would read beyond its end.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Samples = npt.NDArray[np.float32]


class SampleArena:
    """The client's side; its owner has a lock for all methods, and writes to the memory of a slot without it."""

    def __init__(self, n_slots: int = N_SLOTS) -> None:
        self.n_slots = n_slots
        self.fd = os.memfd_create("choral-samples", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, n_slots * SLOT_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, n_slots * SLOT_BYTES)
        except BaseException:
            os.close(self.fd)
            raise
        self._slots = as_slots(self._map, n_slots)
        self._n_touched = 0  # slots that may have pages: the first ones
        self._free = self._all_slots()

    def _all_slots(self) -> list[int]:
        return list(range(self.n_slots - 1, -1, -1))

    @property
    def n_used(self) -> int:
        return self.n_slots - len(self._free)

    def take(self) -> int | None:
        """A free slot, the last one freed first because its pages exist; None: all are in use."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._n_touched = max(self._n_touched, slot + 1)
        return slot

    def memory(self, slot: int) -> Samples:
        memory: Samples = self._slots[slot]
        return memory

    def free(self, slot: int) -> None:
        self._free.append(slot)
        if len(self._free) == self.n_slots and self._n_touched > KEPT_SLOTS:
            first, stop = KEPT_SLOTS * SLOT_BYTES, self._n_touched * SLOT_BYTES
            self._map.madvise(mmap.MADV_REMOVE, first, stop - first)
            self._n_touched, self._free = KEPT_SLOTS, self._all_slots()

    def close(self) -> None:
        """The memory is unmapped when no thread writes to it any more."""
        os.close(self.fd)
        del self._slots, self._map


class MappedArena:
    """The engine's side: a read-only mapping, which lasts as long as any of the windows it returned."""

    def __init__(self, fd: int, n_slots: int) -> None:
        """Raises `ValueError` if the file is not a sealed memfd of that size."""
        if not 1 <= n_slots <= MAX_SLOTS or os.fstat(fd).st_size != n_slots * SLOT_BYTES:
            raise ValueError(f"the shared memory is not {n_slots} slots of {SLOT_BYTES} bytes")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ValueError("the shared memory is not a memfd") from error
        if seals & _SEALS != _SEALS:
            raise ValueError("the shared memory is not sealed: it could be cut while it is read")
        self.n_slots = n_slots
        self._slots = as_slots(mmap.mmap(fd, n_slots * SLOT_BYTES, prot=mmap.PROT_READ), n_slots)

    def read(self, slot: int, n_samples: int) -> Samples:
        """A view: the client writes to this slot again only when its window has ended."""
        return self._slots[slot, :n_samples]


def as_slots(mapping: mmap.mmap, n_slots: int) -> Samples:  # [slots, samples]
    return np.frombuffer(mapping, np.float32).reshape(n_slots, -1)
