"""Two ways to deliver results: to standard output as they are decided, or as files when an input is done.

Both also keep what is there when a run is stopped early: standard output gets it as it is, and a file gets
`.partial` in its name, so that it is not taken for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from choral.cli.inputs import Input
from choral.cli.outputs import OutputPlan, write_file, write_stdout
from choral.cli.progress import Display
from choral.formats import FORMATS, render, text_line
from choral.types import Segment, SubtitleOptions, Transcript


class Sink(Protocol):
    def take(self, segment: Segment) -> None:
        """A segment that became final."""
        ...

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        """The whole transcript of an input; returns the files that were written."""
        ...

    def keep(self, item: Input, transcript: Transcript) -> list[Path]:
        """What was decided of an input before the run was stopped; returns the files that were written."""
        ...


@dataclass(frozen=True)
class StdoutSink:
    """One result on standard output; plain text flows as it is decided."""

    format_name: str
    subtitles: SubtitleOptions
    display: Display

    def take(self, segment: Segment) -> None:
        if self.format_name == "text":
            with self.display.paused():
                write_stdout(text_line(segment))

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        if self.format_name != "text":
            with self.display.paused():
                write_stdout(render(transcript, self.format_name, self.subtitles))
        return []

    def keep(self, item: Input, transcript: Transcript) -> list[Path]:
        return self.finish(item, transcript) if transcript.segments else []


@dataclass(frozen=True)
class FileSink:
    """A file an input and format."""

    plan: OutputPlan
    formats: Sequence[str]
    subtitles: SubtitleOptions

    def take(self, segment: Segment) -> None:
        """Nothing yet: files appear whole."""

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        return self._write(item, transcript, mark="")

    def keep(self, item: Input, transcript: Transcript) -> list[Path]:
        return self._write(item, transcript, mark=".partial") if transcript.segments else []

    def _write(self, item: Input, transcript: Transcript, mark: str) -> list[Path]:
        paths = []
        for name in self.formats:
            path = self.plan.path(item, mark + FORMATS[name].extension)
            write_file(path, render(transcript, name, self.subtitles))
            paths.append(path)
        return paths
