"""A recording that can be read while a thread still decodes it.

Reading waits until the samples are there or the end is known; what depends on the end (duration, peak, warnings) waits
for it. An error of the decoder is raised to every reader who needs samples that it did not deliver. The decoder does
not wait for its readers: samples beyond `max_memory_s` go to a temporary file, so running ahead costs no memory.

Closing the recording, from any thread, ends the decoder and wakes readers with `Cancelled`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.decode_turns import PROCESS_TURNS, DecodeTurn
from choral.audio.recording import (
    MAX_DURATION_S,
    MAX_MEMORY_S,
    AudioInput,
    Cancelled,
    OnProgress,
    Recording,
    RecordingSummary,
    decode_into,
    written_peaks,
)
from choral.audio.samples import SampleSink, SampleWriter
from choral.audio.source import open_source
from choral.options import Channels

# Decodes to the sink, calls back after each piece, ends with an error when the event is set; returns the warnings.
DecodeJob = Callable[[SampleSink, OnProgress, threading.Event], tuple[str, ...]]

JOIN_TIMEOUT_S = 2.0  # a decoder that reads from a pipe or a network drive may be stuck there


def open_growing(
    audio: AudioInput,
    *,
    max_memory_s: float = MAX_MEMORY_S,
    max_duration_s: float = MAX_DURATION_S,
    channels: Channels = "mix",
) -> Recording:
    """`Recording.open` without waiting for the decoder; downloads, and streams that cannot seek, are spooled first."""
    if isinstance(audio, np.ndarray):
        return Recording.open(audio, channels=channels)
    source = open_source(audio)

    def decode(sink: SampleSink, on_progress: OnProgress, cancel_event: threading.Event) -> tuple[str, ...]:
        with source:
            return decode_into(sink, source, max_duration_s, on_progress, cancel_event, channels)

    return GrowingRecording(decode, source.name, max_memory_s)


def decode_at_once(decode: DecodeJob, name: str, max_memory_s: float) -> Recording:
    """On the calling thread: for audio that is decoded before a reader on another thread would have been woken."""
    writer = SampleWriter(int(max_memory_s * SAMPLE_RATE))
    try:
        with PROCESS_TURNS.join() as turn:
            warnings = decode(writer, lambda decoded_s, total_s: turn.pause(), threading.Event())
        return Recording.from_writer(writer, name, warnings)
    except BaseException:
        writer.discard()
        raise


class GrowingRecording(Recording):
    def __init__(self, decode: DecodeJob, name: str, max_memory_s: float) -> None:
        """`decode` starts now, on another thread, and is called even if the recording is closed at once."""
        self._growing = GrowingSamples(decode, name, max_memory_s)
        super().__init__(self._growing, n_samples=0, channel_peaks=(), name=name)

    @property
    def summary(self) -> RecordingSummary:
        return self._growing.wait_for_end()

    @property
    def channel_peaks(self) -> tuple[float, ...]:
        return self._growing.channel_peaks

    @property
    def n_channels(self) -> int:
        """Waits for the first sample."""
        self.available(1)
        return super().n_channels

    @property
    def is_complete(self) -> bool:
        return self._growing.is_complete

    @property
    def estimated_duration(self) -> float | None:
        return self.duration if self.is_complete else self._growing.total_s

    def available(self, n_samples: int) -> int:
        return self._growing.wait_for(n_samples)


class GrowingSamples:
    """Samples, and the thread that decodes them. It does not refer to the recording, which can be collected."""

    def __init__(self, decode: DecodeJob, name: str, max_memory_s: float) -> None:
        self.total_s: float | None = None  # the container's estimate
        self._writer = SampleWriter(int(max_memory_s * SAMPLE_RATE))
        self._changed = threading.Condition()
        self._awaited = math.inf  # the number of samples at which the next reader must be woken
        self._end: RecordingSummary | BaseException | None = None
        self._is_closed = threading.Event()
        self._turn: DecodeTurn | None = None  # of the thread
        self._thread = threading.Thread(target=self._run, args=[decode], name=f"choral-decode-{name}", daemon=True)
        self._thread.start()

    @property
    def n_samples(self) -> int:
        return self._writer.n_samples

    @property
    def channel_peaks(self) -> tuple[float, ...]:
        return written_peaks(self._writer)

    @property
    def is_complete(self) -> bool:
        return isinstance(self._end, RecordingSummary)

    def wait_for(self, n_samples: int) -> int:
        """The smaller of `n_samples` and the length, as soon as it is known."""
        with self._changed:
            while self.n_samples < n_samples and self._end is None:
                self._awaited = min(self._awaited, n_samples)
                self._changed.wait()
            if self.n_samples < n_samples and isinstance(self._end, BaseException):
                raise self._end
            return min(self.n_samples, n_samples)

    def wait_for_end(self) -> RecordingSummary:
        with self._changed:
            while self._end is None:
                self._changed.wait()
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        with self._changed:
            if self._is_closed.is_set():
                raise Cancelled
            return self._writer.read(start, stop)

    def append(self, piece: npt.NDArray[np.int16]) -> None:
        if self._turn is not None:
            self._turn.pause()
        with self._changed:
            self._writer.append(piece)
            if self.n_samples >= self._awaited:
                self._awaited = math.inf
                self._changed.notify_all()

    def close(self) -> None:
        self._is_closed.set()
        with self._changed:
            if self._end is None:
                self._end_with(Cancelled())
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_TIMEOUT_S)
        with self._changed:
            self._writer.discard()

    def _run(self, decode: DecodeJob) -> None:
        try:
            with PROCESS_TURNS.join() as self._turn:
                warnings = decode(self, self._set_total, self._is_closed)
            end: RecordingSummary | BaseException = RecordingSummary(self.n_samples, self.channel_peaks, warnings)
        except BaseException as error:  # whatever it is, the readers raise it
            end = error
        with self._changed:
            if self._end is None:
                self._end_with(end)

    def _end_with(self, end: RecordingSummary | BaseException) -> None:
        self._end = end
        self._changed.notify_all()

    def _set_total(self, decoded_s: float, total_s: float | None) -> None:
        self.total_s = total_s
