"""Downloads over HTTP, for models and samples.

`download` streams to a part file beside the target, resumes it, checks its SHA-256 and renames it to the target, which
is therefore complete or absent. Concurrent processes that download the same target share one transfer. `get` is for
small responses. Failures are `DownloadFailed`, wrong content is `ModelCorrupt`, and a full disk is `StorageError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

from choral.common.backoff import backoff_s
from choral.errors import ChoralError, DownloadFailed, ModelCorrupt, StorageError
from choral.remote.transport import (
    RangeError,
    RefusedError,
    UnreachableError,
    length_of,
    open_url,
    range_of,
    read,
    require_whole,
)
from choral.remote.urls import redact_url
from choral.storage import locked, storage_errors

Result = TypeVar("Result")

Progress = Callable[[int, int | None], None]  # bytes done, bytes in total where known

_CHUNK_BYTES = 1 << 18
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0


@dataclass(frozen=True)
class Response:
    url: str  # after redirects
    content_type: str
    body: bytes


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    on_progress: Progress | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    tries: int = 4,
    proxy: str | None = None,
) -> Path:
    """Download `url` to `target`, unless the target exists (with that SHA-256) already."""

    def open_response(more_headers: Mapping[str, str]) -> HTTPResponse:
        return open_url(url, headers={**(headers or {}), **more_headers}, timeout_s=timeout_s, proxy=proxy)

    if _is_complete(target, sha256):
        return target
    with locked(target.with_name(target.name + ".lock")):
        if not _is_complete(target, sha256):
            transfer = _Transfer(url, open_response, target, sha256, on_progress)
            try:
                _retry(transfer.run, url, tries, progress=lambda: transfer.size)
            except StorageError:
                transfer.discard()
                raise
    return target


def get(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = 64 << 20,
    timeout_s: float = 30.0,
    tries: int = 3,
    proxy: str | None = None,
    not_found: type[ChoralError] = DownloadFailed,
) -> Response:
    """A small response, in memory; `not_found` is the error for 404 and 410."""

    def attempt() -> Response:
        with open_url(url, headers=headers or {}, timeout_s=timeout_s, proxy=proxy) as response:
            body = bytearray()
            while chunk := read(response):
                body += chunk
                if len(body) > max_bytes:
                    raise DownloadFailed(f"{redact_url(url)} has more than the {max_bytes:,} bytes that are allowed")
            require_whole(len(body), length_of(response))
            return Response(response.geturl(), response.headers.get_content_type(), bytes(body))

    return _retry(attempt, url, tries, not_found=not_found)


def parse_json(response: Response) -> Any:
    try:
        return json.loads(response.body)
    except ValueError as error:
        raise DownloadFailed(f"{redact_url(response.url)} did not respond with JSON: {error}") from error


def sha256_of(path: Path) -> str:
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class _Transfer:
    """The state of one download; `size` and `digest` are those of the part file."""

    url: str
    open_response: Callable[[Mapping[str, str]], HTTPResponse]
    target: Path
    sha256: str | None
    on_progress: Progress | None
    size: int = 0
    etag: str = ""
    digest: Any = field(default_factory=hashlib.sha256)
    was_resumed: bool = False

    def __post_init__(self) -> None:
        self.part = self.target.with_name(self.target.name + ".part")
        self.etag_file = self.target.with_name(self.target.name + ".part.etag")
        with storage_errors(self.part):
            if not self.part.exists():
                return
            self.etag = self.etag_file.read_text() if self.etag_file.exists() else ""
            if self._can_resume():
                self._digest_part()

    def run(self) -> None:
        if not (self.size and self._is_verified()):
            self._receive()
        if not self._is_verified() and self.was_resumed:
            # The earlier part may belong to other content than the rest: download once more from the start.
            self._restart()
            self._receive()
        if self.sha256 is not None and not self._is_verified():
            digest = self.digest.hexdigest()
            self._restart()
            raise ModelCorrupt(
                f"{redact_url(self.url)} is not the file it should be: its SHA-256 is {digest}, "
                f"expected {self.sha256}. It was discarded"
            )
        with storage_errors(self.target):
            os.replace(self.part, self.target)
            self.etag_file.unlink(missing_ok=True)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
            self.etag_file.unlink(missing_ok=True)

    def _receive(self) -> None:
        if self.size and not self._can_resume():
            self._restart()
        try:
            response = self.open_response(self._range_headers())
        except RangeError:
            self._restart()
            response = self.open_response({})
        with response:
            total = self._total_size(response)
            self._require_space(total)
            self._write(response, total)
        require_whole(self.size, total)

    def _write(self, response: HTTPResponse, total: int | None) -> None:
        with storage_errors(self.part):
            file = self.part.open("ab" if self.size else "wb")
        with storage_errors(self.part), file:
            self._report(total)
            while chunk := read(response):
                file.write(chunk)
                self.digest.update(chunk)
                self.size += len(chunk)
                self._report(total)
            file.flush()
            os.fsync(file.fileno())

    def _total_size(self, response: HTTPResponse) -> int | None:
        """The size of the whole file; restarts unless the response continues the part file."""
        if response.status == 206:
            start, total = range_of(response)
            if start != self.size:
                self._restart()
                raise UnreachableError("it responded with a different range than requested")
            self.was_resumed = self.size > 0
            return total
        self._restart()
        etag = response.headers.get("ETag", "")
        if etag.startswith('"'):  # a weak ETag does not promise equal bytes
            self.etag = etag
            with storage_errors(self.etag_file):
                self.etag_file.write_text(etag)
        return length_of(response)

    def _is_verified(self) -> bool:
        return self.sha256 is not None and bool(self.digest.hexdigest() == self.sha256)

    def _can_resume(self) -> bool:
        return self.sha256 is not None or bool(self.etag)

    def _range_headers(self) -> dict[str, str]:
        if not self.size:
            return {}
        condition = {"If-Range": self.etag} if self.etag else {}
        return {"Range": f"bytes={self.size}-", **condition}

    def _restart(self) -> None:
        self.discard()
        self.size, self.etag, self.digest, self.was_resumed = 0, "", hashlib.sha256(), False

    def _digest_part(self) -> None:
        with self.part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self.digest.update(chunk)
                self.size += len(chunk)

    def _require_space(self, total: int | None) -> None:
        with storage_errors(self.target.parent):
            free = shutil.disk_usage(self.target.parent).free
        if total is not None and free < total - self.size:
            text = f"{self.target.parent} has {free:,} bytes free, and {total - self.size:,} more are needed"
            raise StorageError(f"the disk is too full: {text}. Free some space and try again")

    def _report(self, total: int | None) -> None:
        if self.on_progress is not None:
            self.on_progress(self.size, total)


def _retry(
    attempt: Callable[[], Result],
    url: str,
    tries: int,
    *,
    progress: Callable[[], int] = lambda: 0,
    not_found: type[ChoralError] = DownloadFailed,
) -> Result:
    failures, furthest = 0, 0
    while True:
        try:
            return attempt()
        except RefusedError as error:
            kind = not_found if error.status in (404, 410) else DownloadFailed
            raise kind(f"{redact_url(url)}: {error}") from error
        except UnreachableError as error:
            # Progress resets the count: a long download may survive many interruptions.
            failures = 1 if progress() > furthest else failures + 1
            furthest = max(furthest, progress())
            if failures >= tries:
                raise DownloadFailed(f"{redact_url(url)}: {error}") from error
            time.sleep(min(_MAX_PAUSE_S, max(error.wait_s, backoff_s(failures, _FIRST_PAUSE_S))))


def _is_complete(target: Path, sha256: str | None) -> bool:
    with storage_errors(target):
        if not target.is_file():
            return False
    return sha256 is None or sha256_of(target) == sha256
