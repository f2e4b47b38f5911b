"""One downloader for everything that comes over HTTP.

`download` streams into a part file beside the target, resumes it, checks its SHA-256 and puts it in place in
one move: the target is there whole or not at all. Several processes may ask for the same target at once.
`get` is for small answers. Which error classes come out is the caller's choice (`FetchErrors`).
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

from choral.errors import StorageError
from choral.remote.transport import (
    MODEL_ERRORS,
    Address,
    FetchErrors,
    RangeError,
    RefusedError,
    UnreachableError,
    length_of,
    range_of,
    read,
    require_whole,
)
from choral.remote.urls import redact_url
from choral.storage import locked, storage_errors

Result = TypeVar("Result")

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all where known

_CHUNK_BYTES = 1 << 18
_BACKOFF_S = 0.5
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Fetched:
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
    max_bytes: int | None = None,
    timeout_s: float = 30.0,
    tries: int = 4,
    proxy: str | None = None,
    errors: FetchErrors = MODEL_ERRORS,
) -> Path:
    """Fetch `url` to `target`; a target that is already there (with that SHA-256) is left as it is."""
    if _is_complete(target, sha256):
        return target
    address = Address(
        url=url, headers=headers or {}, timeout_s=timeout_s, proxy=proxy, errors=errors, max_bytes=max_bytes
    )
    with locked(target.with_name(target.name + ".lock")):
        if not _is_complete(target, sha256):
            transfer = _Transfer(address, target, sha256, on_progress)
            try:
                _retrying(transfer.run, address, tries, lambda: transfer.size)
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
    errors: FetchErrors = MODEL_ERRORS,
) -> Fetched:
    """A small answer, held in memory."""
    address = Address(
        url=url, headers=headers or {}, timeout_s=timeout_s, proxy=proxy, errors=errors, max_bytes=max_bytes
    )

    def attempt() -> Fetched:
        with address.open() as response:
            body = bytearray()
            while chunk := read(response):
                body += chunk
                if address.is_too_large(len(body)):
                    raise address.too_large()
            require_whole(len(body), length_of(response))
            content_type = response.headers.get_content_type()
            return Fetched(response.geturl(), content_type, bytes(body))

    return _retrying(attempt, address, tries, lambda: 0)


def get_bytes(url: str, headers: Mapping[str, str] | None = None, max_bytes: int = 64 << 20) -> bytes:
    return get(url, headers=headers, max_bytes=max_bytes).body


def get_json(url: str, headers: Mapping[str, str] | None = None, max_bytes: int = 64 << 20) -> Any:
    return parse_json(get(url, headers=headers, max_bytes=max_bytes))


def parse_json(answer: Fetched, errors: FetchErrors = MODEL_ERRORS) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise errors.failed(f"{redact_url(answer.url)} should answer with JSON and did not: {error}") from error


def sha256_of(path: Path) -> str:
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class _Transfer:
    """The part file of one download and what is known of it; `size` and `digest` go with the bytes in it."""

    address: Address
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
            if self._may_resume():
                self._digest_part()

    def run(self) -> None:
        if not (self.size and self._is_right()):
            self._receive()
        if not self._is_right() and self.was_resumed:
            # The part may come from other content than the rest: one whole download decides.
            self._restart()
            self._receive()
        if self.sha256 is not None and not self._is_right():
            digest = self.digest.hexdigest()
            self._restart()
            raise self.address.errors.corrupt(
                f"{redact_url(self.address.url)} is not the file it should be: its SHA-256 is {digest}, "
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
        if self.size and not self._may_resume():
            self._restart()
        try:
            response = self.address.open(**self._range_headers())
        except RangeError:
            self._restart()
            response = self.address.open()
        with response:
            total = self._place(response)
            self._require_size(total)
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
                self._require_size(self.size)
                self._report(total)
            file.flush()
            os.fsync(file.fileno())

    def _place(self, response: HTTPResponse) -> int | None:
        """Where the answer's bytes belong, and how many there are in all."""
        if response.status == 206:
            start, total = range_of(response)
            if start != self.size:
                self._restart()
                raise UnreachableError("it answered with another range than asked for")
            self.was_resumed = self.size > 0
            return total
        self._restart()
        etag = response.headers.get("ETag", "")
        if etag.startswith('"'):  # a weak one does not promise equal bytes
            self.etag = etag
            with storage_errors(self.etag_file):
                self.etag_file.write_text(etag)
        return length_of(response)

    def _is_right(self) -> bool:
        return self.sha256 is not None and bool(self.digest.hexdigest() == self.sha256)

    def _require_size(self, size_bytes: int | None) -> None:
        if self.address.is_too_large(size_bytes):
            self.discard()
            raise self.address.too_large()

    def _may_resume(self) -> bool:
        return self.sha256 is not None or bool(self.etag)

    def _range_headers(self) -> dict[str, str]:
        if not self.size:
            return {}
        condition = {"If_Range": self.etag} if self.etag else {}
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


def _retrying(attempt: Callable[[], Result], address: Address, tries: int, progress: Callable[[], int]) -> Result:
    failures, furthest = 0, 0
    while True:
        try:
            return attempt()
        except RefusedError as error:
            raise address.errors.of_status(error.status)(f"{redact_url(address.url)}: {error}") from error
        except UnreachableError as error:
            # Bytes that were never reached before start the count anew: a long download may meet many cuts.
            failures = 1 if progress() > furthest else failures + 1
            furthest = max(furthest, progress())
            if failures >= tries:
                raise address.errors.failed(f"{redact_url(address.url)}: {error}") from error
            time.sleep(min(_LONGEST_WAIT_S, max(error.wait_s, _BACKOFF_S * 2 ** (failures - 1))))


def _is_complete(target: Path, sha256: str | None) -> bool:
    with storage_errors(target):
        if not target.is_file():
            return False
    return sha256 is None or sha256_of(target) == sha256
