"""Sound that grows at its end and is dropped from its start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE

Int16 = npt.NDArray[np.int16]
FIRST_CAPACITY = SAMPLE_RATE


class AudioBuffer:
    """16 kHz samples in one array with room at its end, so that adding little by little costs little."""

    def __init__(self, samples: Int16 | None = None) -> None:
        self._array = np.zeros(FIRST_CAPACITY, np.int16)
        self._start = self._stop = 0
        if samples is not None:
            self.append(samples)

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def duration_s(self) -> float:
        return len(self) / SAMPLE_RATE

    def append(self, samples: Int16) -> None:
        if self._stop + samples.size > self._array.size:
            self._make_room(samples.size)
        self._array[self._stop : self._stop + samples.size] = samples
        self._stop += samples.size

    def drop(self, n_samples: int) -> None:
        """From the start."""
        self._start = min(self._start + n_samples, self._stop)

    def copy(self, start: int = 0, stop: int | None = None) -> Int16:
        """Positions count from the first sample that is still there."""
        last = self._stop if stop is None else min(self._start + stop, self._stop)
        return self._array[self._start + start : last].copy()

    def _make_room(self, n_more: int) -> None:
        kept = self.copy()
        self._array = np.zeros(max(FIRST_CAPACITY, 2 * (kept.size + n_more)), np.int16)
        self._array[: kept.size] = kept
        self._start, self._stop = 0, kept.size
