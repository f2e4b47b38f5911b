"""Audio frames of any format to 16 kHz mono int16, with ffmpeg's resampler: the samples equal those of
`ffmpeg -ac 1 -ar 16000 -acodec pcm_s16le`. With channels="split" they are not mixed: pieces are [samples, channels].

`Resampler` takes frames as they are decoded and returns a second at a time, because fetching a piece takes as long as
converting some milliseconds of audio; when rate, layout or format change midway, it flushes and starts new filters.
`LiveResampler` returns at once what is final: it is for live audio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.filter import Graph
from av.filter.context import FilterContext
from av.frame import Frame

from choral.audio.constants import SAMPLE_RATE
from choral.audio.media import channels_of
from choral.audio.recording import require_channels
from choral.errors import AudioTooLarge, NotAudio
from choral.options import Channels

MIN_RATE, MAX_RATE = 1_000, 12_000_000  # rates outside are damage; the fastest one-bit recordings are below
MAX_VALUES_PER_SECOND = 1_536_000  # rate × channels: 192 kHz in 8 channels, or 768 kHz in stereo
PIECE_SAMPLES = 16_384
MAX_DELAY_SAMPLES = 512  # held back by ffmpeg's resampler: about 17, or 16 input samples, which are 256 at 1 kHz

# Layouts for channels whose positions are not known, by their number. Nothing is mixed, so the positions do not matter.
STANDARD_LAYOUTS = ("", "mono", "stereo", "2.1", "4.0", "5.0", "5.1", "6.1", "7.1")

Piece = npt.NDArray[np.int16]
Pieces = Iterator[Piece]


class Resampler:
    def __init__(self, name: str = "the audio", channels: Channels = "mix") -> None:
        """`name` for messages. With "split", frames whose channels change later are converted to the first ones."""
        self._name, self._splits = name, channels == "split"
        self._n_channels: int | None = None  # to split into, once known
        self._filters: _Filters | None = None
        self._n_values_before = 0  # pushed to earlier filters

    @property
    def n_values(self) -> int:
        """Pushed: samples of all channels, before resampling."""
        return self._n_values_before + (self._filters.n_values if self._filters is not None else 0)

    def push(self, frame: AudioFrame) -> Sequence[Piece]:
        """Takes a frame that has samples. Returns the pieces that it completes: for most frames, none."""
        filters = self._filters
        if (
            filters is None
            or frame.layout != filters.layout
            or frame.sample_rate != filters.rate
            or frame.format.name != filters.format
        ):
            pieces = self.flush()
            if self._splits and self._n_channels is None:
                self._n_channels = frame.layout.nb_channels
                require_channels(self._n_channels, self._name)
            self._filters = _filters_for(frame, self._n_channels)
            return [*pieces, *self._filters.push(frame)]
        return filters.push(frame)

    def flush(self) -> Sequence[Piece]:
        if self._filters is None:
            return ()
        self._n_values_before, filters, self._filters = self.n_values, self._filters, None
        return filters.flush()


class _Filters:
    """ffmpeg's conversion to 16 kHz int16, mono or `n_channels`, of frames that are like the first one.

    `prepare` is applied to each frame before.
    """

    def __init__(
        self, frame: AudioFrame, n_channels: int | None, prepare: Callable[[AudioFrame], AudioFrame] | None
    ) -> None:
        self.layout, self.format, self.rate = frame.layout, frame.format.name, frame.sample_rate
        self._prepare, self._shape = prepare, () if n_channels is None else (n_channels,)
        layout = STANDARD_LAYOUTS[n_channels or 1]
        self._graph, self._source, self._sink = _connect(prepare(frame) if prepare else frame, layout)
        self._n_pushed = 0
        self._n_due = self._n_input(PIECE_SAMPLES + MAX_DELAY_SAMPLES)  # of pushed samples, for the next piece

    @property
    def n_values(self) -> int:
        return self._n_pushed * self.layout.nb_channels

    def push(self, frame: AudioFrame) -> Sequence[Piece]:
        frame.pts = None  # like the ffmpeg program, do not fill gaps in the timestamps
        self._source.push(self._prepare(frame) if self._prepare else frame)
        self._n_pushed += frame.samples
        return self._due_pieces() if self._n_pushed >= self._n_due else ()

    def flush(self) -> Sequence[Piece]:
        self._source.push(None)
        pieces: list[Piece] = []
        with contextlib.suppress(EOFError):
            while True:
                pieces.append(self._pull())
        return pieces

    def _due_pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._n_pushed >= self._n_due:
            self._n_due += self._n_input(PIECE_SAMPLES)
            with contextlib.suppress(BlockingIOError):  # it is not complete: a later call returns it
                pieces.append(self._pull())
        return pieces

    def _pull(self) -> Piece:
        return as_piece(self._sink.pull()).reshape(-1, *self._shape)

    def _n_input(self, n_samples: int) -> int:
        return -(-n_samples * self.rate // SAMPLE_RATE)


def _filters_for(frame: AudioFrame, n_channels: int | None) -> _Filters:
    if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
        raise NotAudio(f"a sample rate of {frame.sample_rate} Hz is not possible: the file is damaged")
    frame_channels = frame.layout.nb_channels
    if frame.sample_rate * frame_channels > MAX_VALUES_PER_SECOND:
        raise AudioTooLarge(
            f"{frame.sample_rate:,} Hz in {frame_channels} channels is over the limit of {MAX_VALUES_PER_SECOND:,} "
            "values per second: convert it to 48 kHz"
        )
    if n_channels == frame_channels:
        is_standard = frame.layout.name == STANDARD_LAYOUTS[n_channels]
        return _Filters(frame, n_channels, None if is_standard else _with_standard_layout)
    try:
        return _Filters(frame, n_channels, None)
    except (av.error.FFmpegError, ValueError):  # ffmpeg has no downmix for 9 or 32 channels, for example
        return _Filters(frame, n_channels, _channel_mean)


def _connect(frame: AudioFrame, output_layout: str) -> tuple[Graph, FilterContext, FilterContext]:
    """A filter graph, which its filters refer to only weakly, with its source and its sink."""
    graph = Graph()
    if hasattr(graph, "threads"):
        graph.threads = 1  # by default every graph starts a thread per core
    rate, sample_format, layout = str(frame.sample_rate), frame.format.name, frame.layout.name
    source = graph.add(
        "abuffer", sample_rate=rate, sample_fmt=sample_format, channel_layout=layout, time_base=f"1/{rate}"
    )
    output = graph.add("aformat", sample_rates=str(SAMPLE_RATE), sample_fmts="s16", channel_layouts=output_layout)
    sink = graph.add("abuffersink")
    graph.link_nodes(source, output, sink)
    graph.configure()
    graph.set_audio_frame_size(PIECE_SAMPLES)
    return graph, source, sink


class LiveResampler:
    """Resamples mono int16 in pieces of any size; the result does not depend on how they are cut."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._resampler = _new_resampler()

    def push(self, samples: Piece) -> Piece:
        """The samples that are final; the last millisecond is held until the next push or `flush`."""
        if self._rate == SAMPLE_RATE or not samples.size:
            return samples
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="s16", layout="mono")
        frame.sample_rate = self._rate
        return _joined(self._resampler.resample(frame))

    def flush(self) -> Piece:
        """The samples still held; the next push starts a new stream."""
        if self._rate == SAMPLE_RATE:
            return np.zeros(0, np.int16)
        held = _joined(self._resampler.resample(None))
        self._resampler = _new_resampler()
        return held


def _joined(frames: list[AudioFrame]) -> Piece:
    return np.concatenate([np.zeros(0, np.int16), *map(as_piece, frames)])


def _new_resampler() -> AudioResampler:
    return AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)


def as_piece(frame: Frame) -> Piece:
    return cast(Piece, cast(AudioFrame, frame).to_ndarray().reshape(-1))


def _channel_mean(frame: AudioFrame) -> AudioFrame:
    mean = _as_float(channels_of(frame)).mean(axis=0, keepdims=True)
    mono = AudioFrame.from_ndarray(mean, format="fltp", layout="mono")
    mono.sample_rate = frame.sample_rate
    return mono


def _with_standard_layout(frame: AudioFrame) -> AudioFrame:
    """The same channels in the order of the file, under names that ffmpeg converts without mixing."""
    samples = _as_float(channels_of(frame))  # interleaved below: PyAV cannot fill eight planes
    named = AudioFrame.from_ndarray(samples.T.reshape(1, -1), format="flt", layout=STANDARD_LAYOUTS[len(samples)])
    named.sample_rate = frame.sample_rate
    return named


def _as_float(samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    full_scale = -float(np.iinfo(samples.dtype).min)
    return (samples / full_scale).astype(np.float32)
