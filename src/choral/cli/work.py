"""The inputs of one run, many at once, and what became of them, told and written as each is done.

What is wrong with an input, with the engine's work on it, or with the place of its result is told and the others go
on. Anything else (options that a model cannot do, a full disk) would be wrong for all of them, and ends the run.
A text that cannot be written where it belongs goes to standard output rather than be lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from choral.cli.crew import AnyCrew, Failed, Finished, Heard, Moved, Report
from choral.cli.failures import Failure, Failures
from choral.cli.inputs import Input
from choral.cli.interrupts import interrupt_code
from choral.cli.outputs import write_stdout
from choral.cli.progress import Display, FileProgress, clock, message, speed
from choral.cli.sinks import Sink, Unwritten
from choral.errors import AudioError, EngineError, JobError, StorageError
from choral.formats import text
from choral.types import Segment, SubtitleOptions, TranscribeOptions, Transcript


@dataclass(frozen=True)
class Request:
    """What is wanted of every input."""

    options: TranscribeOptions
    subtitles: SubtitleOptions
    formats: tuple[str, ...]
    is_quiet: bool


@dataclass(frozen=True)
class AtWork:
    """An input under way: what was decided of it so far."""

    item: Input
    progress: FileProgress
    decided: list[Segment] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)


@dataclass
class Work:
    crew: AnyCrew
    sink: Sink
    display: Display
    request: Request
    failures: Failures
    n_done: int = 0
    audio_s: float = 0.0
    is_disk_full: bool = False
    at_work: dict[Input, AtWork] = field(default_factory=dict)  # in the order they were begun

    def run(self, inputs: Sequence[Input]) -> int:
        """The exit code of the run. Where it ends early, so does the crew."""
        started_s = time.monotonic()
        try:
            self._go_through(inputs)
            if self.is_disk_full:
                self._stop("stopped, because no result can be written", len(inputs))
                return self.failures.exit_code
        except KeyboardInterrupt as interrupt:
            self._stop("stopped", len(inputs))
            return interrupt_code(interrupt)
        except StorageError:
            if len(inputs) > 1:
                self._stop("stopped", len(inputs))
            raise
        finally:
            if self.at_work:
                self.crew.stop()
        if len(inputs) > 1:
            self.display.note(self._total(time.monotonic() - started_s))
        return self.failures.exit_code

    def _go_through(self, inputs: Sequence[Input]) -> None:
        waiting = deque(inputs)
        while (waiting or self.at_work) and not self.is_disk_full:
            while waiting and len(self.at_work) < self.crew.size:
                item = waiting.popleft()
                self.at_work[item] = AtWork(item, self.display.start_file(item.file_name))
                self.crew.begin(item)
            self._take(self.crew.next_report())

    def _take(self, report: Report) -> None:
        work = self.at_work[report.item]
        match report:
            case Heard(_, segment):
                self.sink.take(segment)
                work.decided.append(segment)
            case Moved(_, done_s, total_s):
                work.progress.advance(done_s, total_s)
            case Finished(item, transcript):
                self._leave(work)
                self._warn(item, transcript)
                self._deliver(work, transcript)
            case Failed(item, AudioError() | EngineError() | JobError() as error):
                self._leave(work)
                with self.display.paused():
                    self.failures.tell(Failure(item.label, error))
            case Failed(_, error):
                self._leave(work)
                raise error

    def _leave(self, work: AtWork) -> None:
        del self.at_work[work.item]
        work.progress.finish()

    def _deliver(self, work: AtWork, transcript: Transcript) -> None:
        try:
            paths = self.sink.finish(work.item, transcript)
        except Unwritten as error:
            self._rescue(work.item, transcript, error)
            return
        self.n_done += 1
        self.audio_s += transcript.duration
        self.display.note(summary(work.item, transcript, paths, time.monotonic() - work.started_s))

    def _rescue(self, item: Input, transcript: Transcript, error: Unwritten) -> None:
        self.is_disk_full = self.is_disk_full or error.is_disk_full
        with self.display.paused():
            self.failures.tell(Failure(item.label, error))
            try:
                write_stdout(text(transcript))
                message(f"choral: {item.label}: its text went to standard output instead")
            except StorageError as second:
                message(f"choral: {item.label}: its text is lost: {second}")

    def _warn(self, item: Input, transcript: Transcript) -> None:
        if self.request.is_quiet:
            return
        for warning in transcript.warnings:
            with self.display.paused():
                message(f"choral: {item.label}: warning: {warning}")

    def _stop(self, said: str, n_inputs: int) -> None:
        """Keeps what was finished or decided of every input under way, and says where."""
        for report in self.crew.reports_so_far():
            self._take(report)
        places = [place for work in self.at_work.values() if (place := self._keep(work))]
        kept = f"; what was decided {', '.join(places)}" if places else ""
        with self.display.paused():
            message(f"choral: {said}; {self.n_done} of {n_inputs} done{kept}")

    def _keep(self, work: AtWork) -> str:
        transcript = unfinished(work.decided, self.request.options)
        try:
            paths = self.sink.keep(work.item, transcript)
        except Unwritten as error:
            self._rescue(work.item, transcript, error)
            return ""
        return f"of {work.item.label} is in {listed(paths)}" if paths else ""

    def _total(self, spent_s: float) -> str:
        failed = f", {self.failures.n_told} failed" if self.failures.n_told else ""
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
