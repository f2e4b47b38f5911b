"""Bytes that come once, kept where they can be read again.

Short streams stay in memory, longer ones go to a temporary file that no name points to, so nothing stays
behind whatever happens. A full disk is a `StorageError`; more bytes than allowed is an `AudioTooLarge`.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable
from typing import IO, cast

from choral.errors import AudioTooLarge, StorageError

MEMORY_BYTES = 32 * 2**20


def spool(chunks: Iterable[bytes], name: str, limit_bytes: int, memory_bytes: int = MEMORY_BYTES) -> IO[bytes]:
    """A seekable file, at its start, with everything that `chunks` gave."""
    file = cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=memory_bytes))  # noqa: SIM115  handed out
    written_bytes = 0
    try:
        for chunk in chunks:
            written_bytes += len(chunk)
            if written_bytes > limit_bytes:
                raise AudioTooLarge(
                    f"{name} is larger than {size_text(limit_bytes)}: send a shorter or compressed file"
                )
            write(file, chunk)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def write(file: IO[bytes], data: bytes | memoryview) -> None:
    try:
        file.write(data)
    except OSError as error:
        raise cannot_store(error) from error


def cannot_store(error: OSError) -> StorageError:
    place = tempfile.gettempdir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"no space left in {place}: make room there, or set TMPDIR to a folder on a larger disk")
    return StorageError(
        f"cannot write a temporary file in {place} ({error.strerror or error}): "
        "set TMPDIR to a folder that can be written"
    )


def size_text(n_bytes: int) -> str:
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.3g} GiB"
    return f"{n_bytes / 2**20:.3g} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"
