"""The audio of a row as an open file with its hash: from a path, a URL, an fsspec URL, or bytes in the row."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from choral.audio.source import MAX_FETCH_BYTES, cannot_open, fetch, open_file
from choral.audio.spool import spool
from choral.errors import AudioError, AudioNotFound, FetchFailed, MissingDependency
from choral.remote.urls import redact_url, url_scheme
from choral.serving.input_sources import OpenFile

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Content:
    audio: OpenFile
    sha256: str

    def close(self) -> None:
        self.audio.file.close()


def open_content(path: str | None, data: bytes | None, name: str) -> Content:
    """Raises an `AudioError`. `name` is for messages; its suffix may identify the format."""
    file = io.BytesIO(data) if data is not None else _open(path or "")
    try:
        digest = hashlib.sha256()
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
        file.seek(0)
    except OSError as error:
        file.close()
        raise cannot_open(name, error) from error
    return Content(OpenFile(name, file), digest.hexdigest())


def _open(path: str) -> IO[bytes]:
    scheme = url_scheme(path)
    if scheme in ("http", "https"):
        return fetch(path)
    if scheme:
        return _open_remote(path)
    if os.path.isdir(path):
        raise AudioNotFound(f"{path} is a folder: give the audio files in it")
    return open_file(path)


def _open_remote(url: str) -> IO[bytes]:
    """A copy: decoders seek, and every seek would be a request."""
    name = redact_url(url)
    with remote_errors(name):
        file_system, path = file_system_of(url)
        with file_system.open(path, "rb") as remote:
            return spool(iter(lambda: remote.read(CHUNK_BYTES), b""), name, MAX_FETCH_BYTES)


def file_system_of(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL or path, and the path in it."""
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependency(f"{redact_url(url)} needs fsspec: `pip install choral[ray]`") from error
    try:
        found: tuple[Any, str] = url_to_fs(url)
    except ImportError as error:  # of the package for this kind of storage
        raise MissingDependency(f"{redact_url(url)} cannot be read: {error}") from error
    except ValueError as error:
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise AudioNotFound(f"{redact_url(url)}: {error}; known kinds are {known}") from error
    return found


@contextlib.contextmanager
def remote_errors(name: str) -> Iterator[None]:
    """Every storage raises errors of its own, most of which are `OSError`."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise cannot_open(name, error) from error
    except AudioError:
        raise
    except OSError as error:
        raise FetchFailed(f"could not read {name}: {error}; check the address and the access") from error
