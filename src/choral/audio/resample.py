"""Audio frames of any format to 16 kHz mono int16, with ffmpeg's resampler: the samples equal those of
`ffmpeg -ac 1 -ar 16000 -acodec pcm_s16le`.

`Resampler` batches frames before it converts them, which is twice as fast as one by one; when rate, layout or format
change midway, it flushes and starts a new ffmpeg resampler. `LiveResampler` does not batch: it is for live audio.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.fifo import AudioFifo
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from choral.audio.constants import SAMPLE_RATE
from choral.audio.media import channels_of
from choral.errors import AudioTooLarge, NotAudio

MIN_RATE, MAX_RATE = 1_000, 12_000_000  # rates outside are damage; the fastest one-bit recordings are below
MAX_VALUES_PER_SECOND = 1_536_000  # rate × channels: 192 kHz in 8 channels, or 768 kHz in stereo
BATCH_SAMPLES = 32_768

Pieces = Iterator[npt.NDArray[np.int16]]


class Resampler:
    def __init__(self) -> None:
        self._shape: tuple[str, str, int] | None = None  # format, layout and rate of the current frames
        self._needs_channel_mean = False
        self._fifo = AudioFifo()
        self._resampler = _new_resampler()

    def push(self, frame: AudioFrame) -> Pieces:
        shape = (frame.format.name, frame.layout.name, frame.sample_rate)
        if shape != self._shape:
            yield from self.flush()
            self._start(shape, frame)
        frame.pts = None  # like the ffmpeg program, do not fill gaps in the timestamps
        self._fifo.write(frame)
        if self._fifo.samples >= BATCH_SAMPLES:
            yield from self._convert_batch()

    def flush(self) -> Pieces:
        if self._shape is not None:
            yield from self._convert_batch()
            yield from _arrays(self._resampler.resample(None))
            self._shape = None

    def _start(self, shape: tuple[str, str, int], frame: AudioFrame) -> None:
        if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
            raise NotAudio(f"a sample rate of {frame.sample_rate} Hz is not possible: the file is damaged")
        n_channels = frame.layout.nb_channels
        if frame.sample_rate * n_channels > MAX_VALUES_PER_SECOND:
            raise AudioTooLarge(
                f"{frame.sample_rate:,} Hz in {n_channels} channels is over the limit of {MAX_VALUES_PER_SECOND:,} "
                "values per second: convert it to 48 kHz"
            )
        self._shape = shape
        self._fifo = AudioFifo()
        self._resampler = _new_resampler()
        self._needs_channel_mean = not _can_mix_down(frame)

    def _convert_batch(self) -> Pieces:
        frame = self._fifo.read(0)
        if frame is None:
            return
        frame.pts = None
        yield from _arrays(self._resampler.resample(_channel_mean(frame) if self._needs_channel_mean else frame))


class LiveResampler:
    """Resamples mono int16 in pieces of any size; the result does not depend on how they are cut."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._resampler = _new_resampler()

    def push(self, samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """The samples that are final; the last millisecond is held until the next push or `flush`."""
        if self._rate == SAMPLE_RATE or not samples.size:
            return samples
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="s16", layout="mono")
        frame.sample_rate = self._rate
        return _joined(self._resampler.resample(frame))

    def flush(self) -> npt.NDArray[np.int16]:
        """The samples still held; the next push starts a new stream."""
        if self._rate == SAMPLE_RATE:
            return np.zeros(0, np.int16)
        held = _joined(self._resampler.resample(None))
        self._resampler = _new_resampler()
        return held


def _joined(frames: list[AudioFrame]) -> npt.NDArray[np.int16]:
    return np.concatenate([np.zeros(0, np.int16), *_arrays(frames)])


def _new_resampler() -> AudioResampler:
    return AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)


def _arrays(frames: list[AudioFrame]) -> Pieces:
    for frame in frames:
        yield cast(npt.NDArray[np.int16], frame.to_ndarray().reshape(-1))


def _can_mix_down(frame: AudioFrame) -> bool:
    """Whether ffmpeg has a downmix for this layout; it has none for 9 or 32 channels, for example."""
    try:
        _new_resampler().resample(frame)
    except (av.error.FFmpegError, ValueError):
        return False
    return True


def _channel_mean(frame: AudioFrame) -> AudioFrame:
    mean = _as_float(channels_of(frame)).mean(axis=0, keepdims=True)
    mono = AudioFrame.from_ndarray(mean, format="fltp", layout="mono")
    mono.sample_rate = frame.sample_rate
    return mono


def _as_float(samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    full_scale = -float(np.iinfo(samples.dtype).min)
    return (samples / full_scale).astype(np.float32)
