"""One request on the calling thread: open the audio, transcribe it while another thread decodes it, emit the events.

The same code runs in a request process and, without processes, on a thread of the caller's. `cancel` works in every
phase: it cuts a download, and decoding, voice detection and every other read of samples raise at their next piece.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from choral.audio.constants import SAMPLE_RATE
from choral.audio.growing_recording import GrowingRecording, decode_at_once
from choral.audio.recording import OnProgress, Recording, decode_into, raise_if_cancelled
from choral.audio.samples import SampleSink
from choral.audio.source import AudioSource
from choral.errors import NotAudio
from choral.options import Channels, Priority, TranscribeOptions
from choral.remote.abort_handle import AbortHandle
from choral.serving.request_events import (
    AudioOpened,
    OnEvent,
    Progressed,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SegmentReady,
)
from choral.transcript import Transcript

if TYPE_CHECKING:
    from choral.longform.alignment import Alignment
    from choral.longform.diarized import DiarizationOnly
    from choral.longform.transcriber import AnyTranscription, Transcriber
    from choral.speakers.reference_clips import ReferenceClip

    AnyRun = AnyTranscription | Alignment | DiarizationOnly

# Of `decode_into`: sink, source, maximum seconds of audio, progress, cancel event, channels; returns the warnings.
DecodeFunction = Callable[
    [SampleSink, AudioSource, float, OnProgress | None, threading.Event, Channels], tuple[str, ...]
]
OpenFunction = Callable[[AbortHandle], AudioSource | Recording]
SHORT_BYTES = 512 * 1024  # 16 s of wav; a file that is no larger is decoded before anything else, without a thread


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
        *,
        text: str | None = None,
        wants_text: bool = True,
        references: Sequence[ReferenceClip] = (),
        on_fetched: Callable[[], None] = lambda: None,
    ) -> None:
        """`text` is aligned, if there is one; without `wants_text`, only speakers are found. Speakers whose voice
        is that of a reference get its name.

        `on_fetched` is called before decoding starts.
        """
        self._transcriber, self._open_input, self._limits = transcriber, open_input, limits
        self._options, self._priority, self._emit, self._on_fetched = options, priority, emit, on_fetched
        self._text, self._wants_text, self._references = text, wants_text, references
        self._abort_handle = AbortHandle()
        self._cancel_event = threading.Event()
        self._emit_lock = threading.Lock()
        self._has_ended = False
        self._transcription: AnyRun | None = None

    def run(self) -> None:
        """Never raises: the last event has the error."""
        try:
            end: RequestFinished | RequestFailed = RequestFinished(self._transcribe())
        except BaseException as error:  # bugs included, or the caller would wait forever
            end = RequestFailed(CancelledError() if self._cancel_event.is_set() else error)
        self._report(end)

    def cancel(self) -> None:
        """From any thread."""
        self._cancel_event.set()
        self._abort_handle.abort()
        if self._transcription is not None:
            self._transcription.cancel()

    def _transcribe(self) -> Transcript:
        if self._references:  # first, because the time limit for decoding ends with the audio's
            from choral.speakers.reference_clips import embed_references

            voices = embed_references(self._references, self._cancel_event)
            self._options = replace(self._options, voices=voices)
        with self._open() as recording:
            self._transcription = transcription = self._start(recording)
            for segment in transcription:
                self._report(SegmentReady(segment))
            return transcription.transcript()

    def _start(self, recording: Recording) -> AnyRun:
        if not self._wants_text:
            from choral.longform.diarized import DiarizationOnly

            return DiarizationOnly(recording, self._options, self._report_progress)
        if self._text is None:
            return self._transcriber.start(recording, self._options, self._report_progress, self._priority)
        from choral.longform.alignment import start_alignment

        return start_alignment(
            self._transcriber, recording, self._text, self._options, self._report_progress, self._priority
        )

    def _open(self) -> AbstractContextManager[Recording]:
        started_s = time.perf_counter()
        audio = self._open_input(self._abort_handle)
        self._on_fetched()
        fetch_s = time.perf_counter() - started_s
        if isinstance(audio, Recording):
            recording = audio
            self._report(AudioOpened(recording.duration, fetch_s, decode_s=0.0))
        else:
            recording = self._decode(audio, fetch_s)
        recording.cancel_event = self._cancel_event
        return recording

    def _decode(self, source: AudioSource, fetch_s: float) -> Recording:
        limits, channels, started_s = self._limits, self._options.channels, time.monotonic()

        def decode(sink: SampleSink, on_progress: OnProgress, cancel_event: threading.Event) -> tuple[str, ...]:
            def on_piece(decoded_s: float, total_s: float | None) -> None:
                raise_if_cancelled(self._cancel_event)
                if time.monotonic() > started_s + limits.timeout_s:
                    raise decode_timeout(source.name, limits.timeout_s)
                on_progress(decoded_s, total_s)

            with source:
                warnings = limits.decode(sink, source, limits.max_audio_s, on_piece, cancel_event, channels)
            self._report(AudioOpened(sink.n_samples / SAMPLE_RATE, fetch_s, time.monotonic() - started_s))
            return warnings

        open_recording = decode_at_once if source.n_bytes <= SHORT_BYTES else GrowingRecording
        return open_recording(decode, source.name, limits.max_memory_s)

    def _report_progress(self, done_s: float, total_s: float) -> None:
        self._report(Progressed(done_s, total_s))

    def _report(self, event: RequestEvent) -> None:
        """From the thread that decodes and the one that transcribes; the end is the last event."""
        with self._emit_lock:
            if not self._has_ended:
                self._has_ended = isinstance(event, RequestFinished | RequestFailed)
                self._emit(event)


def decode_timeout(name: str, timeout_s: float) -> NotAudio:
    return NotAudio(f"{name} could not be decoded in {timeout_s:g} s: convert it to wav or flac, or cut it into parts")


def out_of_memory(name: str) -> NotAudio:
    return NotAudio(f"{name} needs too much memory to decode: convert it to wav or flac")
