"""The inputs that a command's arguments name: files, folders, globs, standard input and URLs.

A folder gives every media file in it, at any depth, in order of name; a glob that the shell left alone is expanded as
the shell would. What cannot be found is listed as a failure, so that the other inputs can be transcribed.
"""

from __future__ import annotations

import glob
import io
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from choral.audio.extensions import MEDIA_EXTENSIONS
from choral.cli.failures import Failure
from choral.errors import AudioDenied, AudioError, AudioNotFound, UsageError
from choral.remote.urls import redact_url, url_scheme

STDIN = "-"


@dataclass(frozen=True)
class Input:
    """One thing to transcribe: a path, a URL, or `-` for standard input."""

    source: str
    file_name: str  # the name its results are named after
    is_file: bool = True

    @property
    def label(self) -> str:
        """Its name in messages, without the passwords that a URL may contain."""
        if self.source == STDIN:
            return "<stdin>"
        return self.source if self.is_file else redact_url(self.source)

    @property
    def audio(self) -> str | BinaryIO:
        """The argument for `Recording.open`; call `require_stdin` first.

        Standard input is unbuffered: at exit Python would wait for a thread that still reads from the buffer.
        """
        return cast(io.FileIO, cast(io.BufferedReader, sys.stdin.buffer).raw) if self.source == STDIN else self.source


@dataclass(frozen=True)
class Inputs:
    found: tuple[Input, ...]
    failures: tuple[Failure, ...]
    has_folder: bool  # a folder counts as many inputs, even if it holds one file

    @property
    def is_single(self) -> bool:
        return len(self.found) + len(self.failures) == 1 and not self.has_folder


def expand(arguments: Iterable[str]) -> Inputs:
    """The inputs without duplicates, in the order given."""
    found: dict[str, Input] = {}
    failures: list[Failure] = []
    has_folder = False
    for argument in arguments:
        has_folder = has_folder or os.path.isdir(argument)
        try:
            for item in _expand_one(argument, failures):
                found.setdefault(_identity(item), item)
        except (AudioError, UsageError) as error:
            failures.append(Failure(redact_url(argument) if url_scheme(argument) else argument, error))
    return Inputs(tuple(found.values()), tuple(failures), has_folder)


def require_stdin(inputs: Inputs) -> None:
    """Raise `UsageError` if standard input is an input and is closed or a terminal."""
    if not any(item.source == STDIN for item in inputs.found):
        return
    if sys.stdin is None:
        raise UsageError("standard input is closed: pipe audio into it, as in `choral transcribe - < talk.mp3`")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal: pipe audio into it, as in `choral transcribe - < talk.mp3`")


def _identity(item: Input) -> str:
    return os.path.realpath(item.source) if item.is_file else item.source


def _expand_one(argument: str, failures: list[Failure]) -> Iterator[Input]:
    if argument == STDIN:
        yield Input(STDIN, "stdin", is_file=False)
    elif scheme := url_scheme(argument):
        if scheme not in ("http", "https"):
            raise UsageError(f"{scheme} URLs are not supported; give a path or an http or https URL")
        yield Input(argument, _url_file_name(argument), is_file=False)
    elif os.path.isdir(argument):
        yield from _expand_folder(argument, failures)
    elif os.path.lexists(argument) or not glob.has_magic(argument):
        yield _file(argument)
    else:
        yield from _expand_glob(argument, failures)


def _file(path: str) -> Input:
    try:
        os.stat(path)
    except FileNotFoundError:
        raise AudioNotFound("there is no such file or folder; check the spelling") from None
    except NotADirectoryError:
        raise AudioNotFound("there is no such file: part of its path is a file, not a folder") from None
    except PermissionError:
        raise AudioDenied("it may not be read; check the permissions of its folder") from None
    except (OSError, ValueError) as error:
        raise AudioNotFound(f"it cannot be opened: {error}") from error
    return Input(path, os.path.basename(path))


def _expand_glob(pattern: str, failures: list[Failure]) -> Iterator[Input]:
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise AudioNotFound("no file matches this pattern")
    for match in matches:
        if os.path.isdir(match):
            yield from _media_files(match, failures)
        else:
            yield _file(match)


def _expand_folder(folder: str, failures: list[Failure]) -> Iterator[Input]:
    n_failures = len(failures)
    files = list(_media_files(folder, failures))
    if not files and len(failures) == n_failures:
        raise AudioNotFound("no audio or video file in this folder or below it; name files of other kinds one by one")
    yield from files


def _media_files(folder: str, failures: list[Failure]) -> Iterator[Input]:
    def refuse(error: OSError) -> None:
        failures.append(Failure(error.filename, AudioDenied(f"this folder may not be read: {error.strerror}")))

    for parent, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in MEDIA_EXTENSIONS:
                yield Input(os.path.join(parent, name), name)


def _url_file_name(url: str) -> str:
    parts = urlsplit(url)
    name = PurePosixPath(unquote(parts.path)).name or parts.hostname or "download"
    return name.replace("\0", "").replace("/", "_").replace("\\", "_")
