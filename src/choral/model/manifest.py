"""The manifest of an installed model: `manifest.json` in its folder lists the files with sizes and SHA-256.

Whenever a model is used, sizes and modification times are compared, which is cheap; a file whose time differs or is
not recorded is read and its SHA-256 compared. An invalid manifest, or one that names a file outside its folder, is a
`ModelCorrupt`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from choral.errors import ModelCorrupt, StorageError
from choral.remote.download import sha256_of
from choral.storage import storage_errors

FILENAME = "manifest.json"


@dataclass(frozen=True)
class StoredFile:
    name: str
    size_bytes: int
    sha256: str
    mtime_ns: int | None = None  # modification time when the content was last verified


@dataclass(frozen=True)
class Manifest:
    name: str
    source: str
    entry: str  # what a reader opens, relative to the folder: a file, or "." for the folder
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def with_times(self, folder: Path) -> Manifest:
        """With the current modification times, for files that were just verified."""
        files = (dataclasses.replace(file, mtime_ns=_stat(folder / file.name).st_mtime_ns) for file in self.files)
        return dataclasses.replace(self, files=tuple(files))

    def write(self, folder: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=1) + "\n"
        temporary = folder / f".{FILENAME}.{os.getpid()}.{threading.get_ident()}"
        with storage_errors(folder):
            try:
                temporary.write_text(text)
                os.replace(temporary, folder / FILENAME)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / FILENAME
        try:
            with storage_errors(path):
                text = path.read_text()
            return _parse(json.loads(text))
        except StorageError as error:
            if isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
                raise ModelCorrupt(f"{folder} has no {FILENAME}") from error
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelCorrupt(f"{path} is not a valid manifest ({error})") from error

    def check_sizes(self, folder: Path) -> None:
        for file in self.files:
            path = folder / file.name
            size_bytes = _stat(path).st_size
            if size_bytes != file.size_bytes:
                raise ModelCorrupt(f"{path} has {size_bytes:,} bytes and should have {file.size_bytes:,}")

    def check_content(self, folder: Path, *, every_byte: bool) -> None:
        """Compare sizes, and SHA-256 of files whose modification time differs, or of all with `every_byte`."""
        self.check_sizes(folder)
        files = tuple(_checked(file, folder / file.name, every_byte) for file in self.files)
        if files != self.files:
            # In a read-only folder the times are not updated, and the files are read again next time.
            with contextlib.suppress(StorageError):
                dataclasses.replace(self, files=files).write(folder)


def _checked(file: StoredFile, path: Path, every_byte: bool) -> StoredFile:
    mtime_ns = _stat(path).st_mtime_ns  # taken before reading, so that a change during the read is noticed next time
    if mtime_ns == file.mtime_ns and not every_byte:
        return file
    if sha256_of(path) != file.sha256:
        raise ModelCorrupt(f"{path} was changed: its SHA-256 is not {file.sha256}")
    return dataclasses.replace(file, mtime_ns=mtime_ns)


def _stat(path: Path) -> os.stat_result:
    with storage_errors(path):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ModelCorrupt(f"{path} is missing") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelCorrupt(f"{path} is not a file")
    return status


def _parse(raw: object) -> Manifest:
    if not isinstance(raw, dict) or not isinstance(raw.get("files"), list) or not raw["files"]:
        raise ValueError("it has no list of files")
    files = tuple(_parse_file(file) for file in raw["files"])
    manifest = Manifest(**{**raw, "files": files})
    for text in (manifest.name, manifest.source, manifest.entry):
        _require_text(text)
    if manifest.entry != "." and manifest.entry not in {file.name for file in files}:
        raise ValueError(f"its entry {manifest.entry!r} is not one of its files")
    return manifest


def _parse_file(raw: object) -> StoredFile:
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r} does not describe a file")
    file = StoredFile(**raw)
    _require_text(file.name)
    _require_text(file.sha256)
    numbers = (file.size_bytes,) if file.mtime_ns is None else (file.size_bytes, file.mtime_ns)
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"the size or time of {file.name!r} is not a whole number")
    if _leaves_folder(file.name):
        raise ValueError(f"{file.name!r} is not inside the folder of the model")
    return file


def _require_text(value: object) -> None:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{value!r} is not a printable text")


def _leaves_folder(name: str) -> bool:
    paths = (PurePosixPath(name), PureWindowsPath(name))
    return any(path.anchor or ".." in path.parts for path in paths)
