"""The output of a corpus: a folder of Parquet files that is complete at every moment.

A part is written under another name and then renamed (an object store does the same for every object), so a killed run
leaves whole parts only. Rows of one source: the last one counts, and `sweep` removes the others. `_choral.json` has the
options: rows of different options do not mix. Names with `_` and `.` are no data for readers of Parquet folders.
"""

from __future__ import annotations

import io
import json
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from choral.errors import StorageError, UsageError
from choral.ray.content import file_system_of
from choral.remote.urls import redact_url, url_scheme
from choral.storage import locked, storage_errors

CONFIG = "_choral.json"
INDEX_COLUMNS = ["source", "version", "content_sha256", "error_is_retryable"]
KEY_BYTES = 16


def row_key(source: str, what: str) -> bytes:
    return blake2b(f"{source}\0{what}".encode(errors="surrogateescape"), digest_size=KEY_BYTES).digest()


@dataclass(frozen=True)
class DoneRows:
    """The keys of all rows that need not be made again, sorted: small enough to be sent to every node."""

    packed: bytes  # [keys, KEY_BYTES]

    @classmethod
    def of(cls, keys: set[bytes]) -> DoneRows:
        return cls(b"".join(sorted(keys)))

    def __contains__(self, key: bytes) -> bool:
        n_keys = len(self.packed) // KEY_BYTES
        return self._key(bisect_left(range(n_keys), key, key=self._key)) == key

    def _key(self, number: int) -> bytes:
        return self.packed[number * KEY_BYTES : (number + 1) * KEY_BYTES]

    def has_version(self, row: dict[str, Any]) -> bool:
        """Whether this source was transcribed and has not changed since, as far as its storage tells."""
        version = row.get("version")
        return version is not None and row_key(row["source"], f"version {version}") in self

    def has_content(self, row: dict[str, Any], content_sha256: str) -> bool:
        return row_key(row["source"], f"content {content_sha256}") in self


class CorpusOutput:
    def __init__(self, target: str) -> None:
        """Creates the folder, and checks that it can be written to."""
        self.target = target
        self._is_local = not url_scheme(target)
        with self._errors():
            self._files, self._root = file_system_of(target)
            self._files.makedirs(self._root, exist_ok=True)
            self._write("_probe", b"")
            self._files.rm_file(self._path("_probe"))
            self._parts = self._list_parts()
        self._n_next = 1 + max((int(name.split("-")[1].split(".")[0]) for name in self._parts), default=-1)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Two runs must not write to one folder; only a local folder can tell."""
        if not self._is_local:
            yield
            return
        with locked(Path(self._root) / "_lock"):
            self._parts = self._list_parts()
            yield

    def require_options(self, config: dict[str, Any]) -> None:
        """Raise `UsageError` if the rows that are there were made with other options."""
        path = self._path(CONFIG)
        with self._errors():
            if not self._files.exists(path):
                self._write(CONFIG, json.dumps(config, ensure_ascii=False, indent=1).encode())
                return
            found = json.loads(self._files.cat_file(path))
        different = sorted(name for name in {*config, *found} if config.get(name) != found.get(name))
        if different:
            raise UsageError(
                f"{redact_url(self.target)} has transcripts made with other options ({', '.join(different)}): "
                "give another output folder, or the same options"
            )

    def read_done(self, *, retries_errors: bool) -> tuple[DoneRows, int]:
        """The rows that count as done, and how many there are; with `retries_errors` no error does.

        Otherwise an error counts unless it may pass by itself, as those of a network do.
        """
        keys: set[bytes] = set()
        n_done = 0
        for part in self._parts:
            for row in self._read(part, INDEX_COLUMNS).to_pylist():
                is_retryable = row["error_is_retryable"]
                if is_retryable is not None and (is_retryable or retries_errors):
                    continue
                n_done += 1
                for kind, name in (("version", "version"), ("content", "content_sha256")):
                    if row[name] is not None:
                        keys.add(row_key(row["source"], f"{kind} {row[name]}"))
        return DoneRows.of(keys), n_done

    def append(self, table: pa.Table) -> None:
        """One more part, all or nothing."""
        name = f"part-{self._n_next:08d}.parquet"
        self._n_next += 1
        with self._errors():
            self._write(name, _parquet(table))
        self._parts.append(name)

    def sweep(self) -> int:
        """Remove the rows that a later row of the same source replaces; returns how many."""
        last: dict[bytes, tuple[int, int]] = {}
        sources = [self._read(part, ["source"]).column("source").to_pylist() for part in self._parts]
        for part, names in enumerate(sources):
            last.update({row_key(name, ""): (part, row) for row, name in enumerate(names)})
        n_removed = 0
        for part, names in enumerate(sources):
            kept = [row for row, name in enumerate(names) if last[row_key(name, "")] == (part, row)]
            if len(kept) < len(names):
                n_removed += len(names) - len(kept)
                with self._errors():
                    self._write(
                        self._parts[part], _parquet(self._read(self._parts[part]).take(pa.array(kept, pa.int64())))
                    )
        return n_removed

    def _list_parts(self) -> list[str]:
        names = (os.path.basename(path) for path in self._files.ls(self._root, detail=False))
        return sorted(name for name in names if name.startswith("part-") and name.endswith(".parquet"))

    def _read(self, part: str, columns: list[str] | None = None) -> pa.Table:
        with self._errors(), self._files.open(self._path(part), "rb") as file:
            return pq.ParquetFile(file).read(columns=columns)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if not self._is_local:
            self._files.pipe_file(path, data)
            return
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._is_local:
            with storage_errors(Path(self.target)):
                yield
            return
        try:
            yield
        except OSError as error:
            raise StorageError(f"{redact_url(self.target)} could not be written or read: {error}") from error


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
