"""What a corpus consists of: audio files, and shards that hold many of them, found from one path, URL, pattern or list.

A unit is a file or a shard. Its version is what the storage says of it without reading it (size and time, or an entity
tag), so that what has not changed since the last run need not be read again.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from choral.audio.extensions import MEDIA_EXTENSIONS
from choral.errors import AudioDenied, AudioNotFound
from choral.ray.content import file_system_of, remote_errors
from choral.remote.urls import redact_url, url_scheme

UnitKind = Literal["audio", "tar", "parquet"]
SHARD_KINDS: dict[str, UnitKind] = {".tar": "tar", ".parquet": "parquet"}
LIST_EXTENSIONS = (".txt", ".list")
MAX_UNITS_PER_TASK = 16  # rows arrive, and can be written, when the task that makes them ends
MAX_BYTES_PER_TASK = 64 * 2**20


@dataclass(frozen=True)
class CorpusUnit:
    path: str
    kind: UnitKind
    version: str | None = None  # None: not known without reading it
    size_bytes: int | None = None


def find_units(source: str) -> list[CorpusUnit]:
    """The units of a file, a folder, a pattern, a URL, or a list of these; each once, in order of name."""
    units = {unit.path: unit for unit in _find(source)}
    return sorted(units.values(), key=lambda unit: unit.path)


def group_units(units: Sequence[CorpusUnit]) -> list[list[CorpusUnit]]:
    """Groups of a task each, the largest units first: a long file that starts last would keep one task busy alone."""
    ordered = sorted(units, key=lambda unit: -(unit.size_bytes or 0))
    groups: list[list[CorpusUnit]] = []
    n_bytes = 0
    for unit in ordered:
        size = unit.size_bytes or 0
        is_full = not groups or len(groups[-1]) >= MAX_UNITS_PER_TASK or n_bytes + size > MAX_BYTES_PER_TASK
        if is_full or unit.kind != "audio" or groups[-1][-1].kind != "audio":
            groups.append([])
            n_bytes = 0
        groups[-1].append(unit)
        n_bytes += size
    return groups


def unit_row(unit: CorpusUnit) -> dict[str, Any]:
    return asdict(unit)


def _find(source: str) -> Iterator[CorpusUnit]:
    if source.lower().endswith(LIST_EXTENSIONS):
        for line in _lines(source):
            yield from _find(line)
    elif url_scheme(source) in ("http", "https"):
        yield CorpusUnit(source, _kind(source))
    elif url_scheme(source):
        yield from _find_remote(source)
    elif os.path.isdir(source):
        yield from _find_in_folder(source)
    elif glob.has_magic(source) and not os.path.lexists(source):
        matches = sorted(glob.glob(source, recursive=True))
        if not matches:
            raise AudioNotFound(f"{source}: no file matches this pattern")
        for match in matches:
            yield from _find(match)
    else:
        yield _local_unit(source)


def _lines(source: str) -> Iterator[str]:
    """The entries of a list; relative paths are relative to its folder."""
    name = redact_url(source)
    with remote_errors(name):
        file_system, path = file_system_of(source)
        text = file_system.cat_file(path).decode("utf-8-sig", errors="surrogateescape")
    folder = "" if url_scheme(source) else os.path.dirname(source)
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield entry if url_scheme(entry) else os.path.join(folder, entry)


def _find_in_folder(folder: str) -> Iterator[CorpusUnit]:
    def refuse(error: OSError) -> None:
        raise AudioDenied(f"{error.filename} may not be read: {error.strerror}")

    n_found = 0
    for parent, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if _is_wanted(name):
                n_found += 1
                yield _local_unit(os.path.join(parent, name))
    if not n_found:
        raise _nothing_in(folder)


def _local_unit(path: str) -> CorpusUnit:
    """A file that is missing is found out when it is read: it becomes a row with an error, as every other would."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return CorpusUnit(path, _kind(path))
    return CorpusUnit(path, _kind(path), f"{status.st_size}-{status.st_mtime_ns}", status.st_size)


def _find_remote(url: str) -> Iterator[CorpusUnit]:
    name = redact_url(url)
    with remote_errors(name):
        file_system, path = file_system_of(url)
        if glob.has_magic(path):
            found = file_system.glob(path, detail=True)
        else:
            found = file_system.find(path, detail=True)
    entries = {key: info for key, info in found.items() if info["type"] == "file"}
    is_one_file = list(entries) == [path]
    units = [
        CorpusUnit(file_system.unstrip_protocol(key), _kind(key), _remote_version(info), info.get("size"))
        for key, info in sorted(entries.items())
        if is_one_file or _is_wanted(PurePosixPath(key).name)
    ]
    if not units:
        raise _nothing_in(name)
    yield from units


def _remote_version(info: dict[str, Any]) -> str | None:
    """An entity tag or a time; a size alone does not show a change."""
    stamp = next(
        (info[key] for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created") if key in info), None
    )
    return None if stamp is None else f"{info.get('size')}-{stamp}"


def _nothing_in(folder: str) -> AudioNotFound:
    return AudioNotFound(
        f"{folder}: no audio or video file, .tar or .parquet in this folder or below it; "
        "name files of other kinds in a list, one per line"
    )


def _is_wanted(name: str) -> bool:
    suffix = PurePosixPath(name).suffix.lower()
    return not name.startswith((".", "_")) and (suffix in MEDIA_EXTENSIONS or suffix in SHARD_KINDS)


def _kind(path: str) -> UnitKind:
    return SHARD_KINDS.get(PurePosixPath(path).suffix.lower(), "audio")


def total_bytes(units: Iterable[CorpusUnit]) -> int | None:
    """None: the size of some is not known."""
    sizes = [unit.size_bytes for unit in units]
    return None if None in sizes else sum(size for size in sizes if size is not None)
