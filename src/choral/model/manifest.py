"""What an installed model consists of: `manifest.json` in its folder, written last and read first.

Sizes are compared whenever a model is used, which is cheap; SHA-256 digests when somebody asks.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from choral.errors import ModelCorrupt
from choral.remote.download import sha256_of
from choral.storage import storage_errors

FILENAME = "manifest.json"


@dataclass(frozen=True)
class StoredFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    name: str
    source: str
    entry: str  # what a reader opens, relative to the folder: a file, or "." for the folder
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def write(self, folder: Path) -> None:
        with storage_errors(folder):
            (folder / FILENAME).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        try:
            with storage_errors(folder):
                text = (folder / FILENAME).read_text() if (folder / FILENAME).is_file() else None
            if text is None:
                raise ModelCorrupt(f"{folder} has no {FILENAME}")
            raw = json.loads(text)
            files = tuple(StoredFile(**file) for file in raw.pop("files"))
            return cls(**raw, files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelCorrupt(f"{folder / FILENAME} cannot be understood ({error})") from error

    def check_sizes(self, folder: Path) -> None:
        for file in self.files:
            path = folder / file.name
            if not path.is_file():
                raise ModelCorrupt(f"{path} is missing")
            size_bytes = path.stat().st_size
            if size_bytes != file.size_bytes:
                raise ModelCorrupt(f"{path} has {size_bytes:,} bytes and should have {file.size_bytes:,}")

    def check_digests(self, folder: Path) -> None:
        for file in self.files:
            if sha256_of(folder / file.name) != file.sha256:
                raise ModelCorrupt(f"{folder / file.name} was changed: its SHA-256 is not {file.sha256}")
