"""Files on disk: the cache folder, locks between processes, and typed errors.

`storage_errors` converts an `OSError` into a `StorageError` that says what to do. `locked` holds a file lock that the
operating system releases when the process ends, and removes its file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from choral.errors import StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


def cache_root() -> Path:
    """The default folder for downloads; environment variables override it per kind of file."""
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "choral"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home() / "AppData" / "Local") / "choral"
    return xdg_cache() / "choral"


def cache_folder(variable: str, name: str) -> Path:
    """The folder that this environment variable names, or the one of this name in the cache folder."""
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser() if chosen else cache_root() / name


def xdg_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise StorageError(
            "this user has no home folder: set HOME, or CHORAL_MODELS, CHORAL_SAMPLES and CHORAL_CONVERTED"
        ) from error


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Use around file operations only: a network `OSError` inside would be reported as a disk error."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            text = f"the disk is full: {path} could not be written ({reason}). Free some space and try again"
        elif error.errno in _DENIED:
            text = f"no permission to use {path} ({reason}). Choose a path that you can read and write"
        else:
            text = f"{path} could not be written or read: {reason}"
        raise StorageError(text) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; wait while another process or thread holds it."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, lock_file = _acquire(path)
    try:
        yield
    finally:
        # Unlinking while holding the lock is safe: a waiter checks that its file is still at `path`.
        with contextlib.suppress(OSError):
            lock_file.unlink()
        os.close(descriptor)


def _acquire(path: Path) -> tuple[int, Path]:
    try:
        return _open_locked(path), path
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    path.unlink(missing_ok=True)
    # Some network file systems do not support locks; the local temporary folder nearly always does.
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24]
    user = os.getuid() if hasattr(os, "getuid") else 0
    fallback = Path(tempfile.gettempdir()) / f"choral-lock-{user}-{key}"
    return _open_locked(fallback), fallback


def _open_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_still_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt
    import time

    def _lock(descriptor: int) -> None:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError:
                time.sleep(0.2)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
