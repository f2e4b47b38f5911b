"""API keys: a JSON file stores the SHA-256 of each with its limits.

A key has 256 random bits, so a plain hash is safe against brute force. Every stored hash is compared in constant time.
The file is read again when it changes, so keys can be added and removed without a restart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.errors import UsageError
from choral.validation import check_fields, option

log = logging.getLogger("choral.server")
PREFIX = "ck-"
VERSION = 1
COMMAND_LINE_NAME = "given"  # of the single key on the command line; its jobs and usage are stored under this name
_NAME = re.compile(r"[\w.@-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    name: str
    sha256: str
    requests_per_minute: int = option(0, "requests per minute; 0: unlimited")
    audio_minutes_per_day: float = option(0.0, "minutes of audio in 24 hours; 0: unlimited")
    parallel_requests: int = option(0, "concurrent requests; 0: unlimited")
    admin: bool = option(False, "may add and remove models of the server")

    def __post_init__(self) -> None:
        check_fields(self)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"the key name {self.name!r} must be 1 to 64 letters, digits or any of . _ @ -")
        for name in ("requests_per_minute", "audio_minutes_per_day", "parallel_requests"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be 0 (no limit) or more")


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    try:
        stored = json.loads(path.read_bytes())
        if stored["v"] != VERSION:
            raise UsageError(f"{path} has version {stored['v']!r}; this Choral reads version {VERSION}")
        keys = tuple(ApiKey(**fields) for fields in stored["keys"])
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} does not exist: make a first key with `choral keys add NAME --file {path}`"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is not a file of API keys: make one with `choral keys add`") from error
    for key in keys:
        if not _SHA256.fullmatch(key.sha256):
            raise UsageError(
                f"the key {key.name!r} in {path} has no valid SHA-256: make it again with `choral keys add`"
            )
    names = [key.name for key in keys]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{path} has two keys named {repeated[0]!r}, which would share jobs and limits: rename one")
    return keys


def require_free_name(path: Path, keys: Iterable[ApiKey]) -> None:
    """Refuse a file whose key would share its jobs and limits with the single key on the command line."""
    if any(key.name == COMMAND_LINE_NAME for key in keys):
        raise UsageError(
            f"{path} has a key named {COMMAND_LINE_NAME!r}, which is the name of the key in --api-key or "
            "CHORAL_API_KEY: rename the one in the file, or use only one of the two"
        )


def write_keys(path: Path, keys: Iterable[ApiKey]) -> None:
    """Replace the file atomically; it is readable by its owner alone."""
    stored = {"v": VERSION, "keys": [_stored_fields(key) for key in keys]}
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            json.dump(stored, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _stored_fields(key: ApiKey) -> dict[str, Any]:
    """An earlier Choral, which has no admin keys, reads the file if there are none."""
    fields = dataclasses.asdict(key)
    return fields if key.admin else {name: value for name, value in fields.items() if name != "admin"}


class ApiKeyStore:
    """The keys of a file, and a single key given on the command line."""

    def __init__(self, path: Path | None = None, single_key: str | None = None) -> None:
        self._path = path
        self._single = () if single_key is None else (ApiKey(name=COMMAND_LINE_NAME, sha256=hash_secret(single_key)),)
        self._stamp: tuple[int, int] | None = None
        self._stored: tuple[ApiKey, ...] = ()
        if path is not None:
            self._stored, self._stamp = self._read(path), _stamp(path)

    @property
    def is_required(self) -> bool:
        return bool(self._single) or self._path is not None

    @property
    def has_limits(self) -> bool:
        """Whether keys can have limits: the single key has none."""
        return self._path is not None

    def all(self) -> tuple[ApiKey, ...]:
        self._refresh()
        return (*self._single, *self._stored)

    def find(self, secret: str) -> ApiKey | None:
        return self.find_hash(hash_secret(secret))

    def find_hash(self, sha256: str) -> ApiKey | None:
        matches = [key for key in self.all() if hmac.compare_digest(key.sha256, sha256)]
        return matches[0] if matches else None

    def _refresh(self) -> None:
        """Read a changed file; if it cannot be read, keep the old keys, because it may be half-edited."""
        if self._path is None or (stamp := _stamp(self._path)) in (self._stamp, None):
            return
        self._stamp = stamp  # a broken file is read, and reported, once
        try:
            self._stored = self._read(self._path)
        except UsageError as error:
            log.warning("the API keys stay as they were: %s", error)

    def _read(self, path: Path) -> tuple[ApiKey, ...]:
        keys = read_keys(path)
        if self._single:
            require_free_name(path, keys)
        return keys


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
