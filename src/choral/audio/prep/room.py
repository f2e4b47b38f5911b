"""Memory for prepared sound, counted in bytes: what does not fit stays in its file and is read in pieces."""

from __future__ import annotations

import mmap
import threading
from typing import IO

import numpy as np
import numpy.typing as npt

from choral.audio.samples import S16_BYTES, Samples, SamplesInMemory, SamplesOnDisk

LARGEST_SHARE = 8  # a recording may have one part in so many: a long one must not put all others on disk


class Room:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def settle(self, file: IO[bytes], n_samples: int) -> Samples:
        """The samples in this file, in memory if there is room for them; the file then is closed."""
        n_bytes = n_samples * S16_BYTES
        if not self._take(n_bytes):
            return SamplesOnDisk(file)
        try:
            # Pages of its own, which go back to the system at once: threads' heaps would keep some for ever.
            pages = mmap.mmap(-1, n_bytes)
            file.seek(0)
            n_read = file.readinto(pages)  # type: ignore[attr-defined]  # typeshed does not know it of IO
            assert n_read == n_bytes
            samples = np.frombuffer(pages, np.int16)
        except BaseException:
            self._give_back(n_bytes)
            raise
        file.close()
        return _CountedSamples(samples, self)

    def _take(self, n_bytes: int) -> bool:
        with self._lock:
            fits = n_bytes <= self.size_bytes // LARGEST_SHARE and self.used_bytes + n_bytes <= self.size_bytes
            self.used_bytes += n_bytes if fits else 0
            return fits

    def _give_back(self, n_bytes: int) -> None:
        with self._lock:
            self.used_bytes -= n_bytes


class _CountedSamples(SamplesInMemory):
    def __init__(self, samples: npt.NDArray[np.int16], room: Room) -> None:
        super().__init__(samples)
        self._room, self._n_bytes = room, samples.nbytes

    def close(self) -> None:
        super().close()
        self._room._give_back(self._n_bytes)
        self._n_bytes = 0
