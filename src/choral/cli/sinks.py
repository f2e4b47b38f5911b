"""Two ways to deliver results: to standard output as they are decided, or as files when an input is done.

Both also keep what is there when a run is stopped early: standard output gets it as it is, and a file gets
`.partial` in its name, so that it is not taken for the whole. A file that cannot be written is an `Unwritten`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from choral.cli.inputs import Input
from choral.cli.outputs import OutputPlan, write_file, write_stdout
from choral.cli.progress import Display
from choral.errors import StorageError
from choral.formats import FORMATS, render, text_line
from choral.types import Segment, SubtitleOptions, Transcript


class Unwritten(StorageError):
    """Some or all files of one input could not be written; those of another may do better."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(str(error))
        cause = error.__cause__
        self.is_disk_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


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
        """Every format that can be written, even where another cannot."""
        paths = [self.plan.path(item, mark + FORMATS[name].extension) for name in self.formats]
        unwritten: Unwritten | None = None
        for name, path in zip(self.formats, paths, strict=True):
            try:
                write_file(path, render(transcript, name, self.subtitles))
            except StorageError as error:
                unwritten = unwritten or Unwritten(error)
        if unwritten is not None:
            raise unwritten
        return paths
