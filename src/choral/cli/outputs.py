"""Where results go: standard output, or one file per input and format.

A result is named after its input without the extension: talk.mp3 gives talk.srt. Where that name is taken (by another
input's result, or by an input file itself) the extension stays, talk.mp3.srt, and after that a number is added.
Files are written under a temporary name and then renamed, so a file is complete or does not exist. When a run is
stopped, standard output gets the segments so far, and files get `.partial` in their names.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from choral.cli.console import write_stdout
from choral.cli.inputs import Input
from choral.cli.progress import Display
from choral.errors import StorageError, UsageError
from choral.formats import ALL, FORMATS, render, text_line
from choral.options import SubtitleOptions
from choral.storage import storage_errors
from choral.transcript import Segment, Transcript

MAX_STEM_BYTES = 200  # most file systems allow 255; the rest is for extensions and numbers
MAX_EXTENSION_BYTES = 20  # anything longer is part of the name


class WriteFailed(StorageError):
    """Some or all result files of one input could not be written; other inputs may still succeed."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(str(error))
        cause = error.__cause__
        self.is_disk_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


class Sink(Protocol):
    def add_segment(self, segment: Segment) -> None:
        """Take a segment that became final."""
        ...

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        """Write the transcript of an input; return the files."""
        ...

    def save_partial(self, item: Input, transcript: Transcript) -> list[Path]:
        """Write the segments of an input whose transcription was stopped; return the files."""
        ...


@dataclass(frozen=True)
class StdoutSink:
    """One result on standard output; plain text is printed segment by segment."""

    format_name: str
    subtitles: SubtitleOptions
    display: Display

    def add_segment(self, segment: Segment) -> None:
        if self.format_name == "text":
            with self.display.paused():
                write_stdout(text_line(segment))

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        if self.format_name != "text":
            with self.display.paused():
                write_stdout(render(transcript, self.format_name, self.subtitles, _stem(item)))
        return []

    def save_partial(self, item: Input, transcript: Transcript) -> list[Path]:
        return self.finish(item, transcript) if transcript.segments else []


@dataclass(frozen=True)
class OutputPlan:
    """The folder for the results and the name of each input's results in it, without extension."""

    folder: Path
    names: dict[str, str]  # by the input's source

    def path(self, item: Input, extension: str) -> Path:
        return self.folder / (self.names[item.source] + extension)


@dataclass(frozen=True)
class FileSink:
    """One file per input and format."""

    plan: OutputPlan
    formats: Sequence[str]
    subtitles: SubtitleOptions

    def add_segment(self, segment: Segment) -> None:
        """Nothing to do: files are written whole."""

    def finish(self, item: Input, transcript: Transcript) -> list[Path]:
        return self._write(item, transcript, suffix="")

    def save_partial(self, item: Input, transcript: Transcript) -> list[Path]:
        return self._write(item, transcript, suffix=".partial") if transcript.segments else []

    def _write(self, item: Input, transcript: Transcript, suffix: str) -> list[Path]:
        """Write every format that can be written, and raise the first failure at the end."""
        paths = [self.plan.path(item, suffix + FORMATS[name].extension) for name in self.formats]
        failed: WriteFailed | None = None
        for name, path in zip(self.formats, paths, strict=True):
            try:
                write_file(path, render(transcript, name, self.subtitles, _stem(item)))
            except StorageError as error:
                failed = failed or WriteFailed(error)
        if failed is not None:
            raise failed
        return paths


def read_formats(value: str, has_speakers: bool) -> tuple[str, ...]:
    """The format names in a comma-separated list; `all` is every format, with .json in its verbose form."""
    if value == "all":
        return tuple(name for name in ALL if has_speakers or not FORMATS[name].needs_speakers)
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    for name in names:
        if name not in FORMATS:
            raise UsageError(f"format is {name!r}; it must be one of {', '.join(FORMATS)}, or all")
        if FORMATS[name].needs_speakers and not has_speakers:
            raise UsageError(f"--format {name} has the turns of speakers: give --diarize with it")
    if {"json", "verbose_json"} <= set(names):
        raise UsageError("json and verbose_json both write .json files: choose one of them")
    return names


def make_folder(folder: Path) -> None:
    """Create the folder if needed, and check before the run that results can be written there."""
    with storage_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise StorageError(f"{folder} is a file, not a folder: choose another --output-dir")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_file(path: Path, content: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(path):
        try:
            unfinished.write_bytes(content.encode("utf-8", "backslashreplace"))
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def plan_outputs(inputs: Sequence[Input], folder: Path, formats: Sequence[str]) -> OutputPlan:
    extensions = [FORMATS[name].extension for name in formats]
    protected = {_path_key(Path(item.source)) for item in inputs if item.is_file}
    n_sharing = Counter(_stem(item).casefold() for item in inputs)
    taken: set[str] = set()
    names: dict[str, str] = {}
    for item in inputs:
        for name in _candidates(item, is_stem_shared=n_sharing[_stem(item).casefold()] > 1):
            is_input = any(_path_key(folder / (name + extension)) in protected for extension in extensions)
            if name.casefold() not in taken and not is_input:
                break
        names[item.source] = name
        taken.add(name.casefold())  # some file systems do not distinguish a.txt from A.txt
    return OutputPlan(folder, names)


def _candidates(item: Input, *, is_stem_shared: bool) -> Iterator[str]:
    stem, extension = _split_name(item)
    full_name = stem + extension
    if not is_stem_shared:
        yield stem
    yield full_name
    for number in itertools.count(2):
        yield f"{full_name}-{number}"


def _stem(item: Input) -> str:
    return _split_name(item)[0]


def _split_name(item: Input) -> tuple[str, str]:
    stem, extension = os.path.splitext(item.file_name)
    if len(os.fsencode(extension)) > MAX_EXTENSION_BYTES:
        stem, extension = item.file_name, ""
    encoded = os.fsencode(stem)
    if len(encoded) > MAX_STEM_BYTES:
        stem = encoded[:MAX_STEM_BYTES].decode("utf-8", "ignore")
    return stem, extension


def _path_key(path: Path) -> str:
    return os.path.realpath(path).casefold()
