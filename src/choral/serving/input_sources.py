"""Opens the inputs of a service: files that a caller holds open, and paths below the permitted folders.

A path is resolved first, with all its links and dots, and refused before anything reveals whether it exists. The file
that was opened must then be the one that was checked, even if its folder changed in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from choral.audio.source import AudioSource, cannot_open, open_file
from choral.audio.spool import close_on_error, require_size
from choral.errors import AudioEmpty, AudioRefused


@dataclass(frozen=True)
class OpenFile:
    """A file, such as an upload, that the caller keeps open until the request has started."""

    name: str  # for messages; its suffix may identify the format
    file: IO[bytes]  # on disk, or a `BytesIO`


ServiceAudio = str | os.PathLike[str] | bytes | OpenFile  # a URL or a path, or the audio itself


def open_path(path: str, roots: Iterable[str], max_bytes: int) -> AudioSource:
    real_path = _real_path(path)
    if not any(_is_below(real_path, root) for root in roots):
        raise AudioRefused(
            f"{path} may not be read: it is not below any of the folders that this service may read; "
            "send the audio itself or its http(s) URL, or have the operator add its folder to the roots"
        )
    # O_NONBLOCK: opening a named pipe must not wait for its writer.
    file = open_file(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    with close_on_error(file):
        _require_same_regular_file(file, path, real_path)
        require_size(path, os.fstat(file.fileno()).st_size, max_bytes)
    return AudioSource(path, os.path.splitext(path)[1], file, owns_file=True)


def share_file(name: str, file: IO[bytes], max_bytes: int) -> AudioSource:
    """The same file under a duplicated descriptor, so that its owner may close it at any time."""
    shared = os.fdopen(os.dup(file.fileno()), "rb")
    with close_on_error(shared):
        size_bytes = os.fstat(shared.fileno()).st_size
        require_size(name, size_bytes, max_bytes)
        if not size_bytes:
            raise AudioEmpty(f"{name} is empty: it has no bytes")
        shared.seek(0)
    return AudioSource(name, os.path.splitext(name)[1], shared, owns_file=True)


def _require_same_regular_file(file: IO[bytes], path: str, real_path: str) -> None:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise AudioRefused(f"{path} is not a regular file: only regular files are read")
    try:
        is_same = os.path.samestat(status, os.lstat(real_path))
    except OSError as error:
        raise cannot_open(path, error) from error
    if not is_same:
        raise AudioRefused(f"{path} changed while it was opened, so it is not read")


def _real_path(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:  # a loop of links, or a zero byte
        raise cannot_open(path, error) from error


def _is_below(real_path: str, root: str) -> bool:
    real_root = os.path.realpath(root)
    return os.path.commonpath([real_path, real_root]) == real_root and real_path != real_root
