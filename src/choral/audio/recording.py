"""A recording: random access to 16 kHz mono samples of any length in bounded memory.

`Recording.open` takes every kind of `AudioInput`. Media is decoded to int16, in a temporary file beyond
`max_memory_s`. Arrays must be 16 kHz mono: int16, or floats with full scale at ±1, which keep their exact values, are
not clipped, and are not copied when they are float32. With channels="split" the recording keeps its channels apart
(`channel_recording.py` reads one of them), and arrays may be [channels, samples].

Once the `cancel_event` of a recording is set, decoding and every read of samples raise `Cancelled`. All later work
(voice detection, mel features, windows) reads samples, so it ends soon after.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import S16_SCALE, SAMPLE_RATE
from choral.audio.samples import Samples, SampleSink, SamplesInMemory, SampleWriter
from choral.audio.source import AudioSource, MediaInput, open_source
from choral.errors import AudioTooLarge, BadSamples
from choral.options import Channels, LoudnessKind

AudioInput = MediaInput | np.ndarray[Any, Any]
OnProgress = Callable[[float, float | None], None]  # seconds decoded, total seconds if known

MAX_MEMORY_S = 1_200.0
MAX_DURATION_S = 100 * 3_600.0
# Decoding time grows with rate × channels × seconds, and a file of some kilobytes can declare any of them.
MAX_ORDINARY_RATE = 384_000  # values per second: 48 kHz in 8 channels, or 192 kHz in stereo; of any length
MAX_EXTRA_VALUES = 300_000_000  # beyond that rate, in the whole file: about 10 s of one core
MAX_CHANNELS = 8  # kept apart: each is transcribed as a recording of its own
SILENCE_PEAK = 1e-4  # -80 dB of full scale
MAX_FLOAT_PEAK = 16.0  # floats beyond this were not scaled to ±1


class Cancelled(Exception):
    """The recording's `cancel_event` is set."""


@dataclass(frozen=True)
class RecordingSummary:
    """What is known of a recording once all of it is decoded."""

    n_samples: int
    channel_peaks: tuple[float, ...]  # the largest magnitude in each channel; full scale is 1
    warnings: tuple[str, ...] = ()


class Recording:
    """Decoded audio with random access: 16 kHz mono, of any length, in bounded memory. Close it after use.

    A `GrowingRecording` is still being decoded: there, everything below waits until it is known.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        n_samples: int,
        channel_peaks: tuple[float, ...],
        name: str,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """`channel_peaks`: the largest magnitude in each channel."""
        self._summary = RecordingSummary(n_samples, channel_peaks, warnings)
        self.levels_db: dict[LoudnessKind, float] = {}  # filled in as they are measured
        self.name = name
        self.cancel_event: threading.Event | None = None
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
        cancel_event: threading.Event | None = None,
        channels: Channels = "mix",
    ) -> Recording:
        if isinstance(audio, np.ndarray):
            recording = cls._from_array(audio, channels)
        else:
            writer = SampleWriter(int(max_memory_s * SAMPLE_RATE))
            try:
                with open_source(audio) as source:
                    warnings = decode_into(writer, source, max_duration_s, on_progress, cancel_event, channels)
                recording = cls.from_writer(writer, source.name, warnings)
            except BaseException:
                writer.discard()
                raise
        recording.cancel_event = cancel_event
        return recording

    @classmethod
    def from_writer(cls, writer: SampleWriter, name: str, warnings: tuple[str, ...] = ()) -> Recording:
        peaks = written_peaks(writer)
        return cls(writer.finish(), n_samples=writer.n_samples, channel_peaks=peaks, name=name, warnings=warnings)

    @classmethod
    def _from_array(cls, array: npt.NDArray[Any], channels: Channels) -> Recording:
        samples = _checked_array(array, channels)
        scale = S16_SCALE if samples.dtype == np.int16 else 1
        of_channels = samples.T if samples.ndim == 2 else samples[None]
        peaks = tuple(max(float(each.max(initial=0)), -float(each.min(initial=0))) / scale for each in of_channels)
        warnings: tuple[str, ...] = ()
        if max(peaks) > MAX_FLOAT_PEAK:
            warnings = (f"the samples reach {max(peaks):.0f}, full scale is 1: divide them by their full scale",)
        store = SamplesInMemory(samples)
        return cls(store, n_samples=len(samples), channel_peaks=peaks, name="the given array", warnings=warnings)

    @property
    def summary(self) -> RecordingSummary:
        return self._summary

    @property
    def n_samples(self) -> int:
        return self.summary.n_samples

    @property
    def duration(self) -> float:
        return self.n_samples / SAMPLE_RATE

    @property
    def peak(self) -> float:
        return max(self.summary.channel_peaks)

    @property
    def channel_peaks(self) -> tuple[float, ...]:
        """The largest magnitude in each channel, of what is decoded so far. Never waits."""
        return self._summary.channel_peaks

    @property
    def n_channels(self) -> int:
        """1 unless they are kept apart."""
        return len(self.channel_peaks)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.summary.warnings

    @property
    def is_silent(self) -> bool:
        """Waits for the end only while all samples so far are silent."""
        n_read = 0
        while max(self.channel_peaks) < SILENCE_PEAK:
            if (n_available := self.available(n_read + SAMPLE_RATE)) <= n_read:
                return True
            n_read = n_available
        return False

    @property
    def is_complete(self) -> bool:
        """Whether all of it is decoded. Never waits."""
        return True

    @property
    def estimated_duration(self) -> float | None:
        """The duration if it is known, else the container's estimate, if it has one. Never waits."""
        return self.duration

    def available(self, n_samples: int) -> int:
        """The smaller of `n_samples` and the length of the recording."""
        return min(n_samples, self.n_samples)

    def samples(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The samples of this range, clamped to the recording; the mean of its channels. Do not write into them."""
        samples = self.read(start, stop)
        return samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """`samples`, or [samples, channels] if the channels are kept apart."""
        raise_if_cancelled(self.cancel_event)
        stop = self.available(max(stop, 0))
        return self._samples.read(min(max(start, 0), stop), stop)

    def pieces(self, size: int) -> Iterator[npt.NDArray[np.float32]]:
        """All samples in order, `size` at a time."""
        start = 0
        while (piece := self.samples(start, start + size)).size:
            yield piece
            start += piece.size

    def amplified(self, gain: float) -> Recording:
        """The same samples times `gain`, read from this recording, which must stay open."""
        louder = SamplesAmplified(self, gain)
        peaks = tuple(peak * gain for peak in self.summary.channel_peaks)
        return Recording(louder, n_samples=self.n_samples, channel_peaks=peaks, name=self.name, warnings=self.warnings)

    def close(self) -> None:
        """Frees the samples; garbage collection of the recording does the same."""
        self._finalizer()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SamplesAmplified:
    def __init__(self, recording: Recording, gain: float) -> None:
        self._recording, self._gain = recording, np.float32(gain)

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self._recording.read(start, stop) * self._gain

    def close(self) -> None:
        """Does nothing: the owner of the original recording closes it."""


def raise_if_cancelled(cancel_event: threading.Event | None) -> None:
    if cancel_event is not None and cancel_event.is_set():
        raise Cancelled


def written_peaks(writer: SampleWriter) -> tuple[float, ...]:
    return tuple(float(peak) / S16_SCALE for peak in writer.channel_peaks)


def decode_into(
    writer: SampleSink,
    source: AudioSource,
    max_duration_s: float,
    on_progress: OnProgress | None = None,
    cancel_event: threading.Event | None = None,
    channels: Channels = "mix",
) -> tuple[str, ...]:
    """Writes all samples of the source to the writer and returns the warnings.

    Channels that are kept apart cost as much time and storage as recordings, so their lengths add up.
    """
    from choral.audio.decode import Decoder
    from choral.audio.parallel_decode import decoded_pieces

    decoder = Decoder(source, channels)
    try:
        for piece in decoded_pieces(decoder, source) if channels == "mix" else decoder.pieces():
            writer.append(piece)
            decoded_s = writer.n_samples / SAMPLE_RATE
            n_channels = piece.size // len(piece)
            if decoded_s * n_channels > max_duration_s:
                of_all = f" in its {n_channels} channels together" if n_channels > 1 else ""
                raise AudioTooLarge(f"{source.name} is longer than {max_duration_s:.0f} s{of_all}: cut it into parts")
            if decoder.n_values > MAX_EXTRA_VALUES + MAX_ORDINARY_RATE * decoded_s:
                raise AudioTooLarge(
                    f"{source.name} is too long for its {decoder.n_values / decoded_s:,.0f} values per second "
                    f"(sample rate × channels; up to {MAX_ORDINARY_RATE:,} it may be longer): convert it to 48 kHz"
                )
            raise_if_cancelled(cancel_event)
            if on_progress is not None:
                on_progress(decoded_s, decoder.total_s)
    finally:
        decoder.close()
    return decoder.warnings


def _checked_array(array: npt.NDArray[Any], channels: Channels) -> npt.NDArray[np.int16] | npt.NDArray[np.float32]:
    if channels == "split" and array.ndim == 2:
        require_channels(len(array), "the given array")
        array = array.T
    elif array.ndim != 1:
        raise BadSamples(
            f"the array has the shape {array.shape}; give one channel as a 1-D array, "
            'for example stereo.mean(axis=0) of [2, n]; or [channels, samples] with channels="split"'
        )
    if array.dtype == np.int16:
        return array
    if array.dtype.kind != "f":
        raise BadSamples(f"the array's type is {array.dtype}; give 16 kHz samples as int16, or as floats within ±1")
    with np.errstate(over="ignore"):  # a double too large for float32 becomes infinite and is rejected below
        samples = array.astype(np.float32, copy=False)
    if not (np.isfinite(samples.min(initial=0)) and np.isfinite(samples.max(initial=0))):
        raise BadSamples("the array has samples that are NaN or infinite: clean it with numpy.nan_to_num")
    return samples


def require_channels(n_channels: int, name: str) -> None:
    """Raises if they are too many to be kept apart."""
    if n_channels > MAX_CHANNELS:
        raise AudioTooLarge(
            f"{name} has {n_channels:,} channels, and at most {MAX_CHANNELS} can be transcribed apart: "
            "mix them (channels=mix), or select some"
        )
