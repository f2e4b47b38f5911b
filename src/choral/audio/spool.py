"""Temporary storage for streams: in memory while small, then in an unlinked temporary file that cannot be left behind.

A full disk is a `StorageError`; more bytes than allowed is an `AudioTooLarge`.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, cast

from choral.common.sizes import binary_size
from choral.errors import AudioTooLarge, StorageError

SPOOL_MEMORY_BYTES = 32 * 2**20


def spool(chunks: Iterable[bytes], name: str, max_bytes: int, memory_bytes: int = SPOOL_MEMORY_BYTES) -> IO[bytes]:
    """All chunks in a seekable file, positioned at its start: in memory while small, else an unlinked file."""
    file = cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=memory_bytes))  # noqa: SIM115  returned
    written_bytes = 0
    with close_on_error(file):
        for chunk in chunks:
            written_bytes += len(chunk)
            if written_bytes > max_bytes:
                raise AudioTooLarge(
                    f"{name} is larger than {binary_size(max_bytes)}: send a shorter or compressed file"
                )
            write(file, chunk)
        file.seek(0)
    return file


@contextmanager
def close_on_error(file: IO[bytes]) -> Iterator[None]:
    """Close the file if the block fails; otherwise it stays open, for its next owner."""
    try:
        yield
    except BaseException:
        file.close()
        raise


def require_size(name: str, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise AudioTooLarge(
            f"{name} has {binary_size(size_bytes)}, the limit is {binary_size(max_bytes)}: "
            "send a shorter or compressed file"
        )


def temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise cannot_store(error) from error


def write(file: IO[bytes], data: bytes | memoryview) -> None:
    try:
        file.write(data)
    except OSError as error:
        raise cannot_store(error) from error


def cannot_store(error: OSError) -> StorageError:
    folder = tempfile.tempdir or "the temporary folder"  # gettempdir() fails itself where no folder can be written
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"no space left in {folder}: make room there, or set TMPDIR to a folder on a larger disk")
    return StorageError(
        f"cannot write a temporary file in {folder} ({error.strerror or error}): "
        "set TMPDIR to a folder that can be written"
    )
