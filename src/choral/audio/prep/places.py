"""Audio that others name, opened with care: bytes, and paths below the folders that may be read.

A path is resolved first, with all its links and dots, and refused before anything tells whether it exists. The file
that was opened must then be the one that was checked, whatever happened to its folder in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import IO

from choral.audio.samples import temporary_file
from choral.audio.source import Source, cannot_open
from choral.audio.spool import size_text, write
from choral.errors import AudioEmpty, AudioRefused, AudioTooLarge


def open_path(path: str, roots: Iterable[str], max_bytes: int) -> Source:
    real = _real_path(path)
    if not any(_is_below(real, root) for root in roots):
        raise AudioRefused(
            f"{path} is not read: it lies in no folder that this service reads from; "
            "send the audio itself or its http(s) address, or have its folder put among the roots"
        )
    try:
        # Without waiting: the other end of a pipe might never come.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise cannot_open(path, error) from error
    try:
        _require_same_plain_file(file, path, real, max_bytes)
    except BaseException:
        file.close()
        raise
    return Source(path, os.path.splitext(path)[1], file, is_ours=True)


def keep_bytes(data: bytes, max_bytes: int) -> Source:
    """In a temporary file: another process is to read them."""
    name = "the given bytes"
    _require_size(name, len(data), max_bytes)
    file: IO[bytes] = temporary_file()
    try:
        write(file, data)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Source(name, "", file, is_ours=True)


def share_file(name: str, file: IO[bytes], max_bytes: int) -> Source:
    """The same file under a descriptor of its own: its owner may close it at any time."""
    shared = os.fdopen(os.dup(file.fileno()), "rb")
    try:
        size_bytes = os.fstat(shared.fileno()).st_size
        _require_size(name, size_bytes, max_bytes)
        if not size_bytes:
            raise AudioEmpty(f"{name} is empty: there is not one byte in it")
        shared.seek(0)
    except BaseException:
        shared.close()
        raise
    return Source(name, os.path.splitext(name)[1], shared, is_ours=True)


def _require_same_plain_file(file: IO[bytes], path: str, real: str, max_bytes: int) -> None:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise AudioRefused(f"{path} is not a plain file: only those are read")
    try:
        is_same = os.path.samestat(status, os.lstat(real))
    except OSError as error:
        raise cannot_open(path, error) from error
    if not is_same:
        raise AudioRefused(f"{path} changed while it was opened: it is not read")
    _require_size(path, status.st_size, max_bytes)


def _require_size(name: str, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise AudioTooLarge(
            f"{name} has {size_text(size_bytes)}, the limit is {size_text(max_bytes)}: "
            "send a shorter or compressed file"
        )


def _real_path(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:  # loops of links, or a zero byte
        raise cannot_open(path, error) from error


def _is_below(real: str, root: str) -> bool:
    real_root = os.path.realpath(root)
    return os.path.commonpath([real, real_root]) == real_root and real != real_root
