"""The inputs of one run, in order, and what became of them.

What is wrong with an input, with the engine's work on it, or with the place of its result is told and the next one
follows. Anything else (options that a model cannot do, a full disk) would be wrong for all of them, and ends the run.
A text that cannot be written where it belongs goes to standard output rather than be lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.failures import Failure, Failures
from choral.cli.inputs import Input
from choral.cli.interrupts import interrupt_code
from choral.cli.outputs import write_stdout
from choral.cli.progress import Display, clock, message, speed
from choral.cli.sinks import Sink, Unwritten
from choral.errors import AudioError, EngineError, StorageError
from choral.formats import text
from choral.types import Segment, SubtitleOptions, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.api import Model


@dataclass(frozen=True)
class Request:
    """What is wanted of every input."""

    options: TranscribeOptions
    subtitles: SubtitleOptions
    formats: tuple[str, ...]
    is_quiet: bool


@dataclass
class Work:
    model: Model
    sink: Sink
    display: Display
    request: Request
    failures: Failures
    n_done: int = 0
    audio_s: float = 0.0
    is_disk_full: bool = False
    decided: list[Segment] = field(default_factory=list)  # of the input at work

    def run(self, inputs: Sequence[Input]) -> int:
        """The exit code of the run."""
        started_s = time.monotonic()
        item = inputs[0]
        try:
            for item in inputs:
                self._do(item)
                if self.is_disk_full:
                    message(f"choral: stopped, because no result can be written; {self.n_done} of {len(inputs)} done")
                    return self.failures.exit_code
        except KeyboardInterrupt as interrupt:
            self._stop(item, len(inputs))
            return interrupt_code(interrupt)
        if len(inputs) > 1:
            self.display.note(self._total(time.monotonic() - started_s))
        return self.failures.exit_code

    def _do(self, item: Input) -> None:
        started_s = time.monotonic()
        self.decided.clear()
        self.display.start_file(item.file_name)
        try:
            transcript = self._transcribe(item)
        except (AudioError, EngineError) as error:
            with self.display.paused():
                self.failures.tell(Failure(item.label, error))
        else:
            self._warn(item, transcript)
            self._deliver(item, transcript, started_s)
        self.display.finish_file()

    def _deliver(self, item: Input, transcript: Transcript, started_s: float) -> None:
        try:
            paths = self.sink.finish(item, transcript)
        except Unwritten as error:
            self._rescue(item, transcript, error)
            return
        self.n_done += 1
        self.audio_s += transcript.duration
        self.display.note(summary(item, transcript, paths, time.monotonic() - started_s))

    def _rescue(self, item: Input, transcript: Transcript, error: Unwritten) -> None:
        self.is_disk_full = error.is_disk_full
        with self.display.paused():
            self.failures.tell(Failure(item.label, error))
            try:
                write_stdout(text(transcript))
                message(f"choral: {item.label}: its text went to standard output instead")
            except StorageError as second:
                message(f"choral: {item.label}: its text is lost: {second}")

    def _transcribe(self, item: Input) -> Transcript:
        def take(segment: Segment) -> None:
            self.sink.take(segment)
            self.decided.append(segment)

        return self.model.transcribe(
            item.audio, self.request.options, on_segment=take, on_progress=self.display.advance
        )

    def _warn(self, item: Input, transcript: Transcript) -> None:
        if self.request.is_quiet:
            return
        for warning in transcript.warnings:
            with self.display.paused():
                message(f"choral: {item.label}: warning: {warning}")

    def _stop(self, item: Input, n_inputs: int) -> None:
        transcript = unfinished(self.decided, self.request.options)
        paths: list[Path] = []
        try:
            paths = self.sink.keep(item, transcript)
        except Unwritten as error:
            self._rescue(item, transcript, error)
        kept = f"; what was decided of {item.label} is in {listed(paths)}" if paths else ""
        with self.display.paused():
            message(f"choral: stopped; {self.n_done} of {n_inputs} done{kept}")

    def _total(self, spent_s: float) -> str:
        failed = f", {len(self.failures.told)} failed" if self.failures.told else ""
        facts = [f"{clock(self.audio_s)} of audio in {spent(spent_s)}", speed(self.audio_s, spent_s)]
        return f"{self.n_done} done{failed}: {', '.join(fact for fact in facts if fact)}"


def unfinished(decided: Sequence[Segment], options: TranscribeOptions) -> Transcript:
    """What there is of a transcript that was stopped; its language is only known if it was given."""
    return Transcript(
        text="".join(segment.text for segment in decided),
        segments=tuple(decided),
        language=options.language or "und",
        language_probability=None,
        duration=decided[-1].end if decided else 0.0,
        task=options.task,
        warnings=("stopped before the end of the audio",),
    )


def summary(item: Input, transcript: Transcript, paths: Sequence[Path], spent_s: float) -> str:
    from choral.model.languages import NAMES

    language = NAMES.get(transcript.language, transcript.language)
    if transcript.language_probability is not None:
        language += f" ({transcript.language_probability:.0%} sure)"
    facts = [
        f"{clock(transcript.duration)} of audio in {spent(spent_s)}",
        speed(transcript.duration, spent_s),
        language if transcript.segments else "no speech found",
    ]
    line = ", ".join(fact for fact in facts if fact)
    return f"{item.file_name} → {listed(paths)}: {line}" if paths else line


def spent(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def listed(paths: Sequence[Path]) -> str:
    """The first path, and the endings of the others: they differ in nothing else."""
    return ", ".join([str(paths[0]), *(path.suffix for path in paths[1:])])
