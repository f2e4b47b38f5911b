"""Transcription with speakers: diarization runs beside it, on a thread of its own, over the same recording.

Who a speaker is depends on the whole recording, so all segments become final at the end. Words are needed to split
segments where the speaker changes; they are left out afterwards unless they were asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace

from choral.audio.recording import Recording
from choral.diarization import Diarization
from choral.engine.window import Caller
from choral.longform.progress_reporter import OnProgress
from choral.longform.transcriber import Transcriber, Transcription
from choral.options import TranscribeOptions
from choral.speakers.assignment import assign_speakers
from choral.speakers.diarize import diarize_recording, speaker_bounds
from choral.speakers.naming import name_speakers
from choral.speakers.networks import load_networks
from choral.transcript import Segment, Transcript

JOIN_TIMEOUT_S = 2.0  # a thread that waits for a decoder that reads from a pipe may never end


class DiarizedTranscription:
    """One request in progress, with the interface of `Transcription`."""

    def __init__(
        self,
        transcriber: Transcriber,
        recording: Recording,
        options: TranscribeOptions,
        on_progress: OnProgress | None,
        caller: Caller,
    ) -> None:
        self._recording, self._options = recording, options
        plain = replace(options, diarize=False, speakers=None, voices=None, speaker_names=(), word_timestamps=True)
        self._transcription = Transcription(transcriber, recording, plain, on_progress, caller)
        self._is_cancelled = threading.Event()
        self._found: Future[Diarization] = Future()
        self.segments: tuple[Segment, ...] | None = None  # None: their speakers are not known yet

    def cancel(self) -> None:
        """From any thread: iteration raises `CancelledError`."""
        self._is_cancelled.set()
        self._transcription.cancel()

    def __iter__(self) -> Iterator[Segment]:
        # A daemon: a decoder that is stuck in a read must not keep the program from ending.
        thread = threading.Thread(target=self._diarize, name="choral-diarize", daemon=True)
        thread.start()
        try:
            for _ in self._transcription:
                if self._found.done():
                    self._found.result()  # raises early if it failed
            found = self._found.result()
        finally:
            self._is_cancelled.set()
            thread.join(JOIN_TIMEOUT_S)
        self.segments = tuple(self._with_wanted_words(assign_speakers(self._transcription.segments, found)))
        yield from self.segments

    def transcript(self) -> Transcript:
        """Complete once the iteration has ended; before, the segments so far, without speakers."""
        transcript = self._transcription.transcript()
        if self.segments is None:
            return replace(transcript, segments=tuple(self._with_wanted_words(transcript.segments)))
        found = self._found.result()
        return replace(transcript, segments=self.segments, speakers=found.speakers, turns=found.turns)

    def _diarize(self) -> None:
        try:
            bounds = speaker_bounds(self._options.speakers)
            found = diarize_recording(self._recording, load_networks(), bounds, self._raise_if_cancelled)
            self._found.set_result(name_speakers(found, self._options.voices, self._options.speaker_names))
        except BaseException as error:  # whatever it is, the iteration raises it
            self._found.set_exception(error)

    def _raise_if_cancelled(self, _: float) -> None:
        if self._is_cancelled.is_set():
            raise CancelledError

    def _with_wanted_words(self, segments: tuple[Segment, ...]) -> Iterator[Segment]:
        for segment in segments:
            yield segment if self._options.word_timestamps else replace(segment, words=None)


class DiarizationOnly:
    """A request for the speakers of a recording without its text, with the interface of `Transcription`."""

    def __init__(self, recording: Recording, options: TranscribeOptions, on_progress: OnProgress) -> None:
        self._recording, self._options, self._on_progress = recording, options, on_progress
        self._is_cancelled = threading.Event()
        self._found: Diarization | None = None

    def cancel(self) -> None:
        """From any thread: iteration raises `CancelledError`."""
        self._is_cancelled.set()

    def __iter__(self) -> Iterator[Segment]:
        """There are no segments."""
        bounds = speaker_bounds(self._options.speakers)
        found = diarize_recording(self._recording, load_networks(), bounds, self._report)
        self._found = name_speakers(found, self._options.voices, self._options.speaker_names)
        yield from ()

    def transcript(self) -> Transcript:
        """Without text; once the iteration has ended, with turns and speakers."""
        recording, found = self._recording, self._found or Diarization((), (), 0.0)
        return Transcript(
            text="",
            segments=(),
            language=self._options.language or "",
            language_probability=None,
            duration=recording.duration,
            warnings=recording.warnings,
            speakers=found.speakers,
            turns=found.turns,
        )

    def _report(self, done_s: float) -> None:
        if self._is_cancelled.is_set():
            raise CancelledError
        self._on_progress(done_s, max(done_s, self._recording.estimated_duration or 0.0))
