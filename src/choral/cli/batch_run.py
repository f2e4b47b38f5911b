"""One run over many inputs: start them, follow the executor's events, and write and report each result.

If an input, the engine on it, or writing its result fails, that is reported and the others continue. Any other
error (options that the model does not support, a full disk) would affect every input, and ends the run. A text that
cannot be written to its file goes to standard output.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from choral.cli.console import format_clock, format_elapsed, format_speed, message, write_stdout
from choral.cli.executors import Event, Executor
from choral.cli.failures import Failure, Failures
from choral.cli.inputs import Input
from choral.cli.outputs import Sink, WriteFailed
from choral.cli.progress import Display, FileProgress
from choral.cli.signals import interrupt_code
from choral.errors import AudioError, EngineError, JobError, StorageError
from choral.formats import text
from choral.options import SubtitleOptions, TranscribeOptions
from choral.serving.request_events import Progressed, RequestFailed, RequestFinished, SegmentReady
from choral.transcript import Segment, Transcript


@dataclass(frozen=True)
class BatchOptions:
    """The options that apply to every input of the run."""

    options: TranscribeOptions
    subtitles: SubtitleOptions
    formats: tuple[str, ...]
    is_quiet: bool


@dataclass(frozen=True)
class RunningInput:
    item: Input
    progress: FileProgress
    segments: list[Segment] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)


@dataclass
class BatchRun:
    executor: Executor
    sink: Sink
    display: Display
    options: BatchOptions
    failures: Failures
    n_done: int = 0
    audio_s: float = 0.0
    is_disk_full: bool = False
    running: dict[Input, RunningInput] = field(default_factory=dict)  # in the order they were started

    def run(self, inputs: Sequence[Input]) -> int:
        """Transcribe all inputs and return the exit code; if the run ends early, stop the executor."""
        started_s = time.monotonic()
        try:
            self._transcribe(inputs)
            if self.is_disk_full:
                self._save_partial_results("stopped, because no result can be written", len(inputs))
                return self.failures.exit_code
        except KeyboardInterrupt as interrupt:
            self._save_partial_results("stopped", len(inputs))
            return interrupt_code(interrupt)
        except StorageError:
            if len(inputs) > 1:
                self._save_partial_results("stopped", len(inputs))
            raise
        finally:
            if self.running:
                self.executor.stop()
        if len(inputs) > 1:
            self.display.note(self._total(time.monotonic() - started_s))
        return self.failures.exit_code

    def _transcribe(self, inputs: Sequence[Input]) -> None:
        waiting = deque(inputs)
        while (waiting or self.running) and not self.is_disk_full:
            while waiting and len(self.running) < self.executor.max_parallel:
                item = waiting.popleft()
                self.running[item] = RunningInput(item, self.display.start_file(item.file_name))
                self.executor.start(item)
            self._handle(self.executor.next_event())

    def _handle(self, event: Event) -> None:
        item, change = event
        running = self.running[item]
        match change:
            case SegmentReady(segment):
                self.sink.add_segment(segment)
                running.segments.append(segment)
            case Progressed(done_s, total_s):
                running.progress.advance(done_s, total_s)
            case RequestFinished(transcript):
                self._remove(running)
                self._warn(item, transcript)
                self._write(running, transcript)
            case RequestFailed(AudioError() | EngineError() | JobError() as error):
                self._remove(running)
                with self.display.paused():
                    self.failures.report(Failure(item.label, error))
            case RequestFailed(error):
                self._remove(running)
                raise error

    def _remove(self, running: RunningInput) -> None:
        del self.running[running.item]
        running.progress.finish()

    def _warn(self, item: Input, transcript: Transcript) -> None:
        if self.options.is_quiet:
            return
        for warning in transcript.warnings:
            with self.display.paused():
                message(f"choral: {item.label}: warning: {warning}")

    def _write(self, running: RunningInput, transcript: Transcript) -> None:
        try:
            paths = self.sink.finish(running.item, transcript)
        except WriteFailed as error:
            self._print_instead(running.item, transcript, error)
            return
        self.n_done += 1
        self.audio_s += transcript.duration
        self.display.note(summary(running.item, transcript, paths, time.monotonic() - running.started_s))

    def _print_instead(self, item: Input, transcript: Transcript, error: WriteFailed) -> None:
        self.is_disk_full = self.is_disk_full or error.is_disk_full
        with self.display.paused():
            self.failures.report(Failure(item.label, error))
            try:
                write_stdout(text(transcript))
                message(f"choral: {item.label}: its text went to standard output instead")
            except StorageError as second:
                message(f"choral: {item.label}: its text is lost: {second}")

    def _save_partial_results(self, reason: str, n_inputs: int) -> None:
        """Save the segments of every running input, and print where they are."""
        for event in self.executor.pending_events():
            self._handle(event)
        saved = [text for running in self.running.values() if (text := self._save_partial(running))]
        partial = f"; partial results: {', '.join(saved)}" if saved else ""
        with self.display.paused():
            message(f"choral: {reason}; {self.n_done} of {n_inputs} done{partial}")

    def _save_partial(self, running: RunningInput) -> str:
        transcript = partial_transcript(running.segments, self.options.options)
        try:
            paths = self.sink.save_partial(running.item, transcript)
        except WriteFailed as error:
            self._print_instead(running.item, transcript, error)
            return ""
        return f"{running.item.label} in {join_paths(paths)}" if paths else ""

    def _total(self, elapsed_s: float) -> str:
        failed = f", {self.failures.n_reported} failed" if self.failures.n_reported else ""
        return f"{self.n_done} done{failed}: {_throughput(self.audio_s, elapsed_s)}"


def partial_transcript(segments: Sequence[Segment], options: TranscribeOptions) -> Transcript:
    """The transcript of an input that was stopped; its language is known only if it was given."""
    return Transcript(
        text="".join(segment.text for segment in segments),
        segments=tuple(segments),
        language=options.language or "und",
        language_probability=None,
        duration=segments[-1].end if segments else 0.0,
        task=options.task,
        warnings=("stopped before the end of the audio",),
    )


def summary(item: Input, transcript: Transcript, paths: Sequence[Path], elapsed_s: float) -> str:
    from choral.model.languages import NAMES

    language = NAMES.get(transcript.language, transcript.language)
    if transcript.language_probability is not None:
        language += f" ({transcript.language_probability:.0%} sure)"
    details = language if transcript.segments else "no speech found"
    line = f"{_throughput(transcript.duration, elapsed_s)}, {details}"
    return f"{item.file_name} → {join_paths(paths)}: {line}" if paths else line


def _throughput(audio_s: float, elapsed_s: float) -> str:
    speed = format_speed(audio_s, elapsed_s)
    return f"{format_clock(audio_s)} of audio in {format_elapsed(elapsed_s)}{', ' if speed else ''}{speed}"


def join_paths(paths: Sequence[Path]) -> str:
    """The first path, and the extensions of the others: they differ in nothing else."""
    return ", ".join([str(paths[0]), *(path.suffix for path in paths[1:])])
