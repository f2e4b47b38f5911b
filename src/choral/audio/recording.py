"""A recording: random access to 16 kHz mono samples of any length in bounded memory.

`Recording.open` takes every kind of `AudioInput`. Media is decoded to int16 (kept in a temporary file beyond
`max_memory_s`). Arrays are taken as 16 kHz mono: int16, or floats with full scale at ±1, which keep their
exact values, are not clipped, and are not copied when they are float32.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import S16_SCALE, SAMPLE_RATE
from choral.audio.samples import Samples, SamplesInMemory, SampleWriter
from choral.audio.source import AudioInput, Source, open_source
from choral.errors import AudioEmpty, AudioTooLarge, BadSamples
from choral.types import LoudnessKind

__all__ = ["AudioInput", "OnProgress", "Recording"]

OnProgress = Callable[[float, float | None], None]  # seconds decoded, seconds in all or None

MAX_MEMORY_S = 1_200.0
MAX_DURATION_S = 100 * 3_600.0
SILENCE_PEAK = 1e-4  # -80 dB of full scale
LOUDEST_FLOAT_PEAK = 16.0  # floats beyond this were never scaled to ±1


class Recording:
    def __init__(
        self, samples: Samples, *, n_samples: int, peak: float, name: str, warnings: tuple[str, ...] = ()
    ) -> None:
        self.n_samples = n_samples
        self.peak = peak  # the largest magnitude; full scale is 1
        self.is_silent = peak < SILENCE_PEAK
        self.levels_db: dict[LoudnessKind, float] = {}  # as far as they were measured
        self.name = name
        self.warnings = warnings
        self._samples = samples
        self._finalizer = weakref.finalize(self, samples.close)

    @classmethod
    def open(
        cls,
        audio: AudioInput,
        *,
        on_progress: OnProgress | None = None,
        max_memory_s: float = MAX_MEMORY_S,
        max_duration_s: float = MAX_DURATION_S,
    ) -> Recording:
        if isinstance(audio, np.ndarray):
            return cls._of_array(audio)
        writer = SampleWriter(int(max_memory_s * SAMPLE_RATE))
        try:
            with open_source(audio) as source:
                warnings = decode_into(writer, source, max_duration_s, on_progress)
            peak = writer.peak / S16_SCALE
            return cls(writer.finish(), n_samples=writer.n_samples, peak=peak, name=source.name, warnings=warnings)
        except BaseException:
            writer.discard()
            raise

    @classmethod
    def _of_array(cls, array: npt.NDArray[Any]) -> Recording:
        samples = _checked(array)
        peak = max(float(samples.max()), -float(samples.min()))
        if samples.dtype == np.int16:
            peak /= S16_SCALE
        warnings: tuple[str, ...] = ()
        if peak > LOUDEST_FLOAT_PEAK:
            warnings = (f"the samples reach {peak:.0f}, full scale is 1: divide them by their full scale",)
        return cls(
            SamplesInMemory(samples),
            n_samples=samples.size,
            peak=peak,
            name="the given array",
            warnings=warnings,
        )

    @property
    def duration(self) -> float:
        return self.n_samples / SAMPLE_RATE

    def samples(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The samples of this range, as far as it lies in the recording. Do not write into them."""
        start = min(max(start, 0), self.n_samples)
        return self._samples.read(start, min(max(stop, start), self.n_samples))

    def pieces(self, size: int) -> Iterator[npt.NDArray[np.float32]]:
        """All samples in order, `size` at a time."""
        for start in range(0, self.n_samples, size):
            yield self.samples(start, start + size)

    def read_through(self, wrap: Callable[[Samples], Samples]) -> None:
        """From now on samples are read from what `wrap` makes of the store they lie in."""
        self._samples = wrap(self._samples)

    def amplified(self, gain: float) -> Recording:
        """The same sound times `gain`; it reads from this recording, which must stay open."""
        louder = SamplesAmplified(self, gain)
        peak = self.peak * gain
        return Recording(louder, n_samples=self.n_samples, peak=peak, name=self.name, warnings=self.warnings)

    def close(self) -> None:
        """Gives up the samples; also happens by itself when the recording is forgotten."""
        self._finalizer()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SamplesAmplified:
    def __init__(self, recording: Recording, gain: float) -> None:
        self._recording, self._gain = recording, np.float32(gain)

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self._recording.samples(start, stop) * self._gain

    def close(self) -> None:
        """The recording it reads from is its owner's to close."""


def decode_into(
    writer: SampleWriter, source: Source, max_duration_s: float, on_progress: OnProgress | None = None
) -> tuple[str, ...]:
    """All samples of the source go to the writer; what comes back are the warnings."""
    from choral.audio.decode import Decoder

    decoder = Decoder(source)
    try:
        for piece in decoder.pieces():
            writer.append(piece)
            decoded_s = writer.n_samples / SAMPLE_RATE
            if decoded_s > max_duration_s:
                raise AudioTooLarge(f"{source.name} is longer than {max_duration_s:.0f} s: cut it into parts")
            if on_progress is not None:
                on_progress(decoded_s, decoder.total_s)
    finally:
        decoder.close()
    return decoder.warnings


def _checked(array: npt.NDArray[Any]) -> npt.NDArray[np.int16] | npt.NDArray[np.float32]:
    if array.ndim != 1:
        raise BadSamples(
            f"the array has the shape {array.shape}; give one channel as a 1-D array, "
            "for example stereo.mean(axis=0) of [2, n]"
        )
    if not array.size:
        raise AudioEmpty("the array is empty: there is not one sample in it")
    if array.dtype == np.int16:
        return array
    if array.dtype.kind != "f":
        raise BadSamples(f"the array's type is {array.dtype}; give 16 kHz samples as int16, or as floats within ±1")
    with np.errstate(over="ignore"):  # a double too large for a float becomes infinite, and is refused below
        samples = array.astype(np.float32, copy=False)
    if not (np.isfinite(samples.min()) and np.isfinite(samples.max())):
        raise BadSamples("the array has samples that are not numbers or infinite: clean it with numpy.nan_to_num")
    return samples
