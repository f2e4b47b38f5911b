"""Memory budget for prepared recordings, in bytes; a recording that does not fit stays in its file."""

from __future__ import annotations

import mmap
import threading
from typing import IO

import numpy as np
import numpy.typing as npt

from choral.audio.samples import S16_BYTES, Samples, SamplesInMemory, SamplesOnDisk

MAX_SHARE = 1 / 8  # of the budget for one recording: a long one must not push all others to disk


class MemoryBudget:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def load(self, file: IO[bytes], n_samples: int) -> Samples:
        """The samples of this file, in memory if the budget allows it; the file is then closed."""
        n_bytes = n_samples * S16_BYTES
        if not self._reserve(n_bytes):
            return SamplesOnDisk(file)
        try:
            # An anonymous mapping goes back to the system at once; the malloc arenas of threads would keep some.
            pages = mmap.mmap(-1, n_bytes)
            file.seek(0)
            n_read = file.readinto(pages)  # type: ignore[attr-defined]  # typeshed's IO lacks it
            assert n_read == n_bytes
            samples = np.frombuffer(pages, np.int16)
        except BaseException:
            self.release(n_bytes)
            raise
        file.close()
        return _BudgetedSamples(samples, self)

    def release(self, n_bytes: int) -> None:
        with self._lock:
            self.used_bytes -= n_bytes

    def _reserve(self, n_bytes: int) -> bool:
        with self._lock:
            fits = n_bytes <= self.size_bytes * MAX_SHARE and self.used_bytes + n_bytes <= self.size_bytes
            self.used_bytes += n_bytes if fits else 0
            return fits


class _BudgetedSamples(SamplesInMemory):
    def __init__(self, samples: npt.NDArray[np.int16], budget: MemoryBudget) -> None:
        super().__init__(samples)
        self._budget, self._n_bytes = budget, samples.nbytes

    def close(self) -> None:
        super().close()
        self._budget.release(self._n_bytes)
        self._n_bytes = 0
