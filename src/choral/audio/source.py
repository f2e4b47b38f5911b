"""Where audio comes from: a path, an http(s) address, bytes, or an open binary file.

`open_source` turns each into a seekable file with a name for messages. What cannot be seeked (stdin, pipes)
is read to its end first, because many formats keep their index there. A caller's own file is read from its
beginning and left open.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import TracebackType
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np

from choral.audio import fetch
from choral.audio.spool import spool
from choral.errors import AudioDenied, AudioEmpty, AudioError, AudioNotFound, UsageError
from choral.remote.transport import shown

AudioInput = str | os.PathLike[str] | bytes | bytearray | BinaryIO | np.ndarray[Any, Any]

MAX_STREAM_BYTES = 16 * 2**30  # a pipe that never ends must not fill the disk
CHUNK_BYTES = 2**20
# Two letters at least: "C:" at the start of a path is a drive.
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    name: str  # for messages
    suffix: str  # ".g722": some formats are known by it alone
    file: IO[bytes]  # seekable, at its start
    is_ours: bool  # False: the caller closes it

    def close(self) -> None:
        if self.is_ours:
            self.file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def scheme_of(audio: object) -> str | None:
    """The protocol of an address, in small letters; None for anything else."""
    match = _SCHEME.match(audio) if isinstance(audio, str) else None
    return match.group(1).lower() if match else None


def open_source(audio: str | os.PathLike[str] | bytes | bytearray | BinaryIO) -> Source:
    if isinstance(audio, bytes | bytearray):
        return source_of(io.BytesIO(audio), "the given bytes", suffix="", is_ours=True)
    if isinstance(audio, str) and (scheme := scheme_of(audio)):
        return _of_url(audio, scheme)
    if isinstance(audio, str | os.PathLike):
        return _of_path(os.fspath(audio))
    if isinstance(audio, io.TextIOBase):
        raise UsageError("the given file is open for text: open it in binary mode")
    if callable(getattr(audio, "read", None)):
        name = getattr(audio, "name", None)
        shown = name if isinstance(name, str) else "the given stream"
        return source_of(audio, shown, suffix=PurePosixPath(shown).suffix, is_ours=False)
    raise UsageError(
        f"audio is a {type(audio).__name__}; give a path, an http(s) address, bytes, "
        "a file opened in binary mode, or a numpy array"
    )


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    return AudioError(f"{name} could not be read: {getattr(error, 'strerror', None) or error}")


def require_http(url: str, scheme: str) -> None:
    if scheme not in ("http", "https"):
        raise UsageError(f"{url}: {scheme} addresses are not supported; give a path or an http or https address")


def suffix_of_url(url: str) -> str:
    return PurePosixPath(urlsplit(url).path).suffix


def _of_url(url: str, scheme: str) -> Source:
    require_http(url, scheme)
    file = fetch.fetch(url)
    return source_of(file, shown(url), suffix=suffix_of_url(url), is_ours=True)


def _of_path(path: str) -> Source:
    try:
        file = open(path, "rb")  # noqa: SIM115  the source closes it
    except (OSError, ValueError) as error:
        raise cannot_open(path, error) from error
    return source_of(file, path, suffix=os.path.splitext(path)[1], is_ours=True)


def source_of(file: IO[bytes], name: str, *, suffix: str, is_ours: bool) -> Source:
    opened = Source(name, suffix, file, is_ours)
    try:
        if not _is_seekable(file):
            with opened:
                opened = Source(name, suffix, spool(_chunks(file), name, MAX_STREAM_BYTES), is_ours=True)
        _require_content(opened.file, name)
    except (OSError, ValueError) as error:  # ValueError: the caller's file is closed
        opened.close()
        raise unreadable(name, error) from error
    except (AudioError, UsageError):
        opened.close()
        raise
    return opened


def _is_seekable(file: IO[bytes]) -> bool:
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable())


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield _require_bytes(chunk)


def _require_content(file: IO[bytes], name: str) -> None:
    file.seek(0)
    if not _require_bytes(file.read(1)):
        raise AudioEmpty(f"{name} is empty: there is not one byte in it")
    file.seek(0)


def _require_bytes(data: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise UsageError(f"the given stream yields {type(data).__name__}, not bytes: open it in binary mode")
    return data


def cannot_open(path: str, error: OSError | ValueError) -> AudioError:
    if isinstance(error, IsADirectoryError) or _is_folder(path):
        return AudioNotFound(f"{path} is a folder: give the audio files in it")
    if isinstance(error, PermissionError):
        return AudioDenied(f"{path} may not be read: check its permissions")
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return AudioNotFound(f"{path!r} does not exist: check the path")
    return AudioError(f"{path} could not be opened: {error.strerror or error}")


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
