"""What every source of models does: bring the files of one model into a folder.

A source fails with `DownloadFailed` or `ModelNotFound`, after which another may be tried, or with `ModelCorrupt`
or `StorageError`, which no other source would mend.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from choral.model.manifest import StoredFile
from choral.remote.download import Progress


@dataclass(frozen=True)
class Brought:
    entry: str
    files: tuple[StoredFile, ...]  # relative to the folder


class Source(Protocol):
    @property
    def label(self) -> str:
        """For people, and for the manifest."""

    def bring(self, folder: Path, on_progress: Progress | None) -> Brought:
        """Fetch into `folder`, going on where an earlier try there stopped."""


def shifted(on_progress: Progress | None, done_bytes: int, total_bytes: int | None) -> Progress | None:
    """Progress of one file of several, told as progress of all."""
    if on_progress is None:
        return None
    report = on_progress
    return lambda done, _total: report(done_bytes + done, total_bytes)
