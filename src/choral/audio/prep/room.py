"""Memory for prepared sound, counted in bytes: what does not fit stays in its file and is read in pieces."""

from __future__ import annotations

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
            file.seek(0)
            samples = np.frombuffer(file.read(n_bytes), np.int16)
            assert samples.size == n_samples
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
