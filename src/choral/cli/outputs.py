"""Where results go: standard output, or one file an input and format.

A result is named after its input without the ending: talk.mp3 gives talk.srt. Where that name is taken (by another
input's result, or by an input file itself) the ending stays, talk.mp3.srt, and after that a number is added.
Files appear whole or not at all: they are written beside their place and then renamed.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.cli.inputs import Input
from choral.errors import StorageError, UsageError
from choral.formats import ALL, FORMATS
from choral.storage import storage_errors

MAX_NAME_BYTES = 200  # most file systems stop at 255; the rest is for endings and numbers
MAX_ENDING_BYTES = 20  # what is longer is no ending, but part of the name


class StdoutClosed(Exception):
    """The reader of standard output went away, as `head` does: a reason to stop, not an error."""


def read_formats(given: str) -> tuple[str, ...]:
    """The format names in a list separated by commas; `all` is every format, with .json in its verbose form."""
    names = ALL if given == "all" else tuple(dict.fromkeys(part.strip() for part in given.split(",")))
    for name in names:
        if name not in FORMATS:
            raise UsageError(f"format is {name!r}; it must be one of {', '.join(FORMATS)}, or all")
    if {"json", "verbose_json"} <= set(names):
        raise UsageError("json and verbose_json both write .json files: choose one of them")
    return names


@dataclass(frozen=True)
class OutputPlan:
    """The folder for the results and the name of each input's results in it, without ending."""

    folder: Path
    names: dict[str, str]  # by the input's source

    def path(self, item: Input, extension: str) -> Path:
        return self.folder / (self.names[item.source] + extension)


def plan_outputs(inputs: Sequence[Input], folder: Path, formats: Sequence[str]) -> OutputPlan:
    extensions = [FORMATS[name].extension for name in formats]
    protected = {_path_key(Path(item.source)) for item in inputs if item.is_file}
    stems = Counter(_name_key(_stem(item)) for item in inputs)
    taken: set[str] = set()
    names: dict[str, str] = {}
    for item in inputs:
        for name in _candidates(item, is_stem_shared=stems[_name_key(_stem(item))] > 1):
            is_input = any(_path_key(folder / (name + extension)) in protected for extension in extensions)
            if _name_key(name) not in taken and not is_input:
                break
        names[item.source] = name
        taken.add(_name_key(name))
    return OutputPlan(folder, names)


def make_folder(folder: Path) -> None:
    """Make the folder if needed, and make sure before the work that results can be written there."""
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


def require_stdout() -> None:
    if sys.stdout is None:
        raise StorageError("cannot write to standard output: it is closed")


def write_stdout(content: str) -> None:
    require_stdout()
    try:
        sys.stdout.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as error:
        raise StorageError(f"cannot write to standard output: {error.strerror}") from error


def _stem(item: Input) -> str:
    return _stem_and_ending(item)[0]


def _stem_and_ending(item: Input) -> tuple[str, str]:
    stem, ending = os.path.splitext(item.file_name)
    if len(os.fsencode(ending)) > MAX_ENDING_BYTES:
        stem, ending = item.file_name, ""
    encoded = os.fsencode(stem)
    if len(encoded) > MAX_NAME_BYTES:
        stem = encoded[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    return stem, ending


def _candidates(item: Input, *, is_stem_shared: bool) -> Iterator[str]:
    stem, ending = _stem_and_ending(item)
    whole = stem + ending
    if not is_stem_shared:
        yield stem
    yield whole
    for number in itertools.count(2):
        yield f"{whole}-{number}"


def _name_key(name: str) -> str:
    return name.casefold()  # some file systems do not tell a.txt from A.txt


def _path_key(path: Path) -> str:
    return _name_key(os.path.realpath(path))
