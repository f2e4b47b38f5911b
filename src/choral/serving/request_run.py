"""One request on the calling thread: open the audio, decode it, transcribe it, and emit the events.

The same code runs in a request process and, without processes, on a thread of the caller's. `cancel` works in every
phase: it cuts a download, and decoding, voice detection and every other read of samples raise at their next piece.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import OnProgress, Recording, decode_into
from choral.audio.samples import SampleWriter
from choral.audio.source import AudioSource
from choral.errors import NotAudio
from choral.remote.abort_handle import AbortHandle
from choral.serving.request_events import (
    AudioOpened,
    OnEvent,
    Progressed,
    RequestFailed,
    RequestFinished,
    SegmentReady,
)
from choral.types import Priority, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.longform.transcriber import Transcriber, Transcription

# Of `decode_into`: writer, source, maximum seconds of audio, progress, cancel event; returns the warnings.
DecodeFunction = Callable[[SampleWriter, AudioSource, float, OnProgress | None, threading.Event], tuple[str, ...]]
OpenFunction = Callable[[AbortHandle], AudioSource | Recording]


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    max_memory_s: float  # the rest of the recording goes to a file
    max_audio_s: float
    timeout_s: float = float("inf")
    decode: DecodeFunction = decode_into


class RequestRun:
    def __init__(
        self,
        transcriber: Transcriber,
        open_input: OpenFunction,
        limits: DecodeLimits,
        options: TranscribeOptions,
        priority: Priority,
        emit: OnEvent,
        on_fetched: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_fetched` is called before decoding starts."""
        self._transcriber, self._open_input, self._limits = transcriber, open_input, limits
        self._options, self._priority, self._emit, self._on_fetched = options, priority, emit, on_fetched
        self._abort_handle = AbortHandle()
        self._cancel_event = threading.Event()
        self._transcription: Transcription | None = None

    def run(self) -> None:
        """Never raises: the last event has the error."""
        try:
            end: RequestFinished | RequestFailed = RequestFinished(self._transcribe())
        except BaseException as error:  # bugs included, or the caller would wait forever
            end = RequestFailed(CancelledError() if self._cancel_event.is_set() else error)
        self._emit(end)

    def cancel(self) -> None:
        """From any thread."""
        self._cancel_event.set()
        self._abort_handle.abort()
        if self._transcription is not None:
            self._transcription.cancel()

    def _transcribe(self) -> Transcript:
        with self._open() as recording:
            self._transcription = self._transcriber.start(
                recording, self._options, self._report_progress, self._priority
            )
            for segment in self._transcription:
                self._emit(SegmentReady(segment))
            return self._transcription.transcript()

    def _open(self) -> AbstractContextManager[Recording]:
        started_s = time.perf_counter()
        audio = self._open_input(self._abort_handle)
        self._on_fetched()
        fetched_s = time.perf_counter()
        recording = audio if isinstance(audio, Recording) else self._decode(audio)
        recording.cancel_event = self._cancel_event
        self._emit(AudioOpened(recording.duration, fetched_s - started_s, time.perf_counter() - fetched_s))
        return recording

    def _decode(self, source: AudioSource) -> Recording:
        limits = self._limits
        deadline_s = time.monotonic() + limits.timeout_s

        def check_deadline(decoded_s: float, total_s: float | None) -> None:
            if time.monotonic() > deadline_s:
                raise decode_timeout(source.name, limits.timeout_s)

        writer = SampleWriter(int(limits.max_memory_s * SAMPLE_RATE))
        try:
            with source:
                warnings = limits.decode(writer, source, limits.max_audio_s, check_deadline, self._cancel_event)
            return Recording.from_writer(writer, source.name, warnings)
        except BaseException:
            writer.discard()
            raise

    def _report_progress(self, done_s: float, total_s: float) -> None:
        self._emit(Progressed(done_s, total_s))


def decode_timeout(name: str, timeout_s: float) -> NotAudio:
    return NotAudio(f"{name} could not be decoded in {timeout_s:g} s: convert it to wav or flac, or cut it into parts")


def out_of_memory(name: str) -> NotAudio:
    return NotAudio(f"{name} needs too much memory to decode: convert it to wav or flac")
