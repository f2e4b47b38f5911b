"""Audio sources: a path, an http(s) URL, bytes, or an open binary file, as a seekable file with a name for messages.

Streams that cannot seek (stdin, pipes, HTTP bodies) are spooled to memory or an unlinked temporary file first, because
many formats keep their index at the end. A file that the caller opened is read from its beginning and left open.
Downloads use only http and https, even after a redirect, and are bounded in size and time; a body that is shorter
than its Content-Length is an error.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import PurePosixPath
from typing import IO, BinaryIO
from urllib.parse import urlsplit

from choral.audio.spool import SPOOL_MEMORY_BYTES, require_size, spool
from choral.errors import AudioDenied, AudioEmpty, AudioError, AudioNotFound, AudioRefused, FetchFailed, UsageError
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.transport import (
    ForbiddenError,
    RefusedError,
    UnreachableError,
    length_of,
    open_url,
    read,
    require_whole,
)
from choral.remote.urls import redact_url, require_http, url_scheme

MediaInput = str | os.PathLike[str] | bytes | bytearray | BinaryIO

MAX_STREAM_BYTES = 16 * 2**30  # an endless pipe must not fill the disk
MAX_FETCH_BYTES = 8 * 2**30
STALL_TIMEOUT_S = 30.0  # without a byte
TOTAL_TIMEOUT_S = 3600.0
CHUNK_BYTES = 2**20
MIN_PACE_BYTES = 32 * 2**10  # of a download, within each stall timeout


@dataclass(frozen=True)
class AudioSource:
    name: str  # for messages
    suffix: str  # ".g722": ffmpeg recognises some formats by suffix alone
    file: IO[bytes]  # seekable, positioned at its start
    owns_file: bool  # False: the caller closes it

    @property
    def n_bytes(self) -> int:
        n_bytes = self.file.seek(0, os.SEEK_END)
        self.file.seek(0)
        return n_bytes

    def close(self) -> None:
        if self.owns_file:
            self.file.close()

    def __enter__(self) -> AudioSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_source(audio: MediaInput) -> AudioSource:
    if isinstance(audio, bytes | bytearray):
        return source_from_file(io.BytesIO(audio), "the given bytes", suffix="", owns_file=True)
    if isinstance(audio, str) and url_scheme(audio):
        require_http(audio)
        return source_from_file(fetch(audio), redact_url(audio), suffix=url_suffix(audio), owns_file=True)
    if isinstance(audio, str | os.PathLike):
        path = os.fspath(audio)
        return source_from_file(open_file(path), path, suffix=os.path.splitext(path)[1], owns_file=True)
    if isinstance(audio, io.TextIOBase):
        raise UsageError("the given file is open for text: open it in binary mode")
    if callable(getattr(audio, "read", None)):
        file_name = getattr(audio, "name", None)
        name = file_name if isinstance(file_name, str) else "the given stream"
        return source_from_file(audio, name, suffix=PurePosixPath(name).suffix, owns_file=False)
    raise UsageError(
        f"audio is a {type(audio).__name__}; give a path, an http(s) URL, bytes, "
        "a file opened in binary mode, or a numpy array"
    )


def source_from_file(file: IO[bytes], name: str, *, suffix: str, owns_file: bool) -> AudioSource:
    """A source that reads `file`, or a spooled copy of it where it cannot seek; an empty file is an error."""
    source = AudioSource(name, suffix, file, owns_file)
    try:
        if not _is_seekable(file):
            with source:
                source = AudioSource(name, suffix, spool(_chunks(file), name, MAX_STREAM_BYTES), owns_file=True)
        _require_content(source.file, name)
    except (OSError, ValueError) as error:  # ValueError: the caller's file is closed
        source.close()
        raise unreadable(name, error) from error
    except (AudioError, UsageError):
        source.close()
        raise
    return source


def open_file(path: str, opener: Callable[[str, int], int] | None = None) -> BinaryIO:
    try:
        return open(path, "rb", opener=opener)
    except (OSError, ValueError) as error:
        raise cannot_open(path, error) from error


def cannot_open(path: str, error: OSError | ValueError) -> AudioError:
    if isinstance(error, IsADirectoryError) or _is_folder(path):
        return AudioNotFound(f"{path} is a folder: give the audio files in it")
    if isinstance(error, PermissionError):
        return AudioDenied(f"{path} may not be read: check its permissions")
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return AudioNotFound(f"{path!r} does not exist: check the path")
    return AudioError(f"{path} could not be opened: {error.strerror or error}")


def unreadable(name: str, error: OSError | ValueError) -> AudioError:
    return AudioError(f"{name} could not be read: {getattr(error, 'strerror', None) or error}")


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_seekable(file: IO[bytes]) -> bool:
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable())


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield _require_bytes(chunk)


def _require_content(file: IO[bytes], name: str) -> None:
    file.seek(0)
    if not _require_bytes(file.read(1)):
        raise AudioEmpty(f"{name} is empty: it has no bytes")
    file.seek(0)


def _require_bytes(data: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise UsageError(f"the given stream yields {type(data).__name__}, not bytes: open it in binary mode")
    return data


def url_suffix(url: str) -> str:
    return PurePosixPath(urlsplit(url).path).suffix


def fetch(
    url: str,
    *,
    max_bytes: int = MAX_FETCH_BYTES,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    total_timeout_s: float = TOTAL_TIMEOUT_S,
    guard: SsrfGuard | None = None,
    abort_handle: AbortHandle | None = None,
    memory_bytes: int = SPOOL_MEMORY_BYTES,
) -> IO[bytes]:
    """The body of `url`, spooled. With a guard it connects only where that permits; `abort_handle` ends it at once."""
    name = redact_url(url)
    if guard is not None and abort_handle is None:
        abort_handle = AbortHandle()
    deadline_s = time.monotonic() + total_timeout_s

    def is_over() -> bool:
        return time.monotonic() > deadline_s or (abort_handle is not None and abort_handle.is_aborted)

    try:
        with (
            abort_handle.abort_after(total_timeout_s) if abort_handle is not None else contextlib.nullcontext(),
            open_url(url, headers={}, timeout_s=stall_timeout_s, guard=guard, abort_handle=abort_handle) as response,
        ):
            pace = _Pace(stall_timeout_s)
            return spool(_body(response, name, max_bytes, pace, is_over), name, max_bytes, memory_bytes)
    except ForbiddenError as error:
        raise AudioRefused(f"{name} is not fetched: {error}") from error
    except RefusedError as error:
        raise _fetch_error(error, name) from error
    except (UnreachableError, TimeoutError) as error:
        if is_over():
            raise FetchFailed(f"fetching {name} took over {total_timeout_s:g} s; download it first") from error
        raise FetchFailed(f"could not fetch {name}: {error}; check the URL and try again") from error


class _Pace:
    """Ends a download that trickles: its pauses are short, but it would take up a connection for hours."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._bytes, self._start_s = 0, time.monotonic()

    def count(self, n_bytes: int) -> None:
        self._bytes += n_bytes
        now_s = time.monotonic()
        if self._bytes >= MIN_PACE_BYTES:
            self._bytes, self._start_s = 0, now_s
        elif now_s - self._start_s > self._timeout_s:
            raise UnreachableError(f"it sends less than {MIN_PACE_BYTES // 1024} KiB in {self._timeout_s:g} s")


def _body(
    response: HTTPResponse, name: str, max_bytes: int, pace: _Pace, is_over: Callable[[], bool]
) -> Iterator[bytes]:
    expected_bytes = length_of(response)
    require_size(name, expected_bytes or 0, max_bytes)
    received_bytes = 0
    while chunk := read(response):  # returns what has arrived, so that a trickling server meets the deadline too
        received_bytes += len(chunk)
        pace.count(len(chunk))
        yield chunk
        if is_over():
            break
    if is_over():  # a connection that was cut looks like one that ended
        raise TimeoutError
    require_whole(received_bytes, expected_bytes)


def _fetch_error(error: RefusedError, name: str) -> AudioError:
    if error.status in (404, 410):
        return AudioNotFound(f"{name} does not exist (the server answers {error.status}); check the URL")
    if error.status in (401, 403):
        text = f"{name} may not be read (the server answers {error.status}); use a URL that needs no login"
        return AudioDenied(text)
    text = f"could not fetch {name}: {error}; check the URL"
    return FetchFailed(text, is_final=error.status is not None)
