"""Storage of decoded samples: in memory, or in an unlinked temporary file when there are many.

`SampleWriter` takes int16 pieces and returns one of the two stores; both read any range, from any thread. What it has
so far can be read too, but not during `append`. Pieces and what is read are [samples], or [samples, channels] where the
channels are kept apart; a count of samples is the same for both.
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_right
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt

from choral.audio.constants import S16_SCALE
from choral.audio.spool import cannot_store, temporary_file, write

S16_BYTES = 2


class Samples(Protocol):
    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]: ...

    def close(self) -> None: ...


class SampleSink(Protocol):
    """What a decoder writes to."""

    @property
    def n_samples(self) -> int: ...

    def append(self, piece: npt.NDArray[np.int16]) -> None: ...


class SamplesInMemory:
    def __init__(self, samples: npt.NDArray[np.int16] | npt.NDArray[np.float32]) -> None:
        self._samples = samples

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        part = self._samples[start:stop]
        if part.dtype == np.float32:
            return part  # type: ignore[return-value]
        return as_float(part)  # type: ignore[arg-type]

    def close(self) -> None:
        self._samples = self._samples[:0].copy()  # a view would keep the whole array alive


class SamplesOnDisk:
    """Uses plain file reads: every page that a memory map touches counts as memory of the process."""

    def __init__(self, file: IO[bytes], shape: tuple[int, ...] = ()) -> None:
        """`shape` of one sample: nothing, or the number of channels."""
        self._file, self._shape = file, shape
        self._sample_bytes = S16_BYTES * math.prod(shape)
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        with self._lock:
            self._file.seek(start * self._sample_bytes)
            data = self._file.read((stop - start) * self._sample_bytes)
        return as_float(np.frombuffer(data, np.int16).reshape(-1, *self._shape))

    def close(self) -> None:
        self._file.close()


class SampleWriter:
    def __init__(self, max_memory_samples: int, file: IO[bytes] | None = None) -> None:
        """With a `file`, all samples go there; otherwise memory spills to a new file beyond `max_memory_samples`,
        which are of all channels together."""
        self.n_samples = 0
        self.channel_peaks = np.zeros(1, np.int32)  # the largest magnitude so far in each channel
        self._shape: tuple[int, ...] = ()  # of one sample; that of the first piece
        self._max_memory_samples = max_memory_samples
        self._pieces: list[npt.NDArray[np.int16]] = []
        self._starts: list[int] = []  # the first sample of each piece
        self._file = file

    def append(self, piece: npt.NDArray[np.int16]) -> None:
        if not piece.size:
            return
        self._shape = piece.shape[1:]
        self._starts.append(self.n_samples)
        self.n_samples += len(piece)
        magnitudes = np.maximum(piece.max(axis=0), -piece.min(axis=0).astype(np.int32))
        self.channel_peaks = np.maximum(self.channel_peaks, magnitudes)
        self._pieces.append(piece)
        if self._file is None and self.n_samples * math.prod(self._shape) > self._max_memory_samples:
            self._file = temporary_file()
        if self._file is not None:
            self._write_out(self._file)

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Samples that were appended before."""
        if start >= stop:
            return np.zeros((0, *self._shape), np.float32)
        if self._file is not None:
            self._flush(self._file)
            sample_bytes = S16_BYTES * math.prod(self._shape)
            data = os.pread(self._file.fileno(), (stop - start) * sample_bytes, start * sample_bytes)
            return as_float(np.frombuffer(data, np.int16).reshape(-1, *self._shape))
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, stop - 1)
        offset = self._starts[first]
        return as_float(np.concatenate(self._pieces[first:last])[start - offset : stop - offset])

    def finish(self) -> Samples:
        if self._file is not None:
            self._flush(self._file)
            return SamplesOnDisk(self._file, self._shape)
        return SamplesInMemory(np.concatenate(self._pieces))

    def discard(self) -> None:
        self._clear()
        if self._file is not None:
            self._file.close()

    def _write_out(self, file: IO[bytes]) -> None:
        for piece in self._pieces:
            write(file, np.ascontiguousarray(piece).data.cast("B"))
        self._clear()

    def _flush(self, file: IO[bytes]) -> None:
        try:
            file.flush()
        except OSError as error:
            raise cannot_store(error) from error

    def _clear(self) -> None:
        self._pieces.clear()
        self._starts.clear()


def as_float(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    return np.multiply(samples, np.float32(1 / S16_SCALE), dtype=np.float32)
