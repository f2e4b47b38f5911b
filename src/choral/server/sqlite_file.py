"""A SQLite file of one process at a time, written through before a call returns, so that kill -9 loses nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from choral.errors import StorageError

PRAGMAS = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL")


class SqliteFile:
    """All methods block."""

    def __init__(self, path: Path, schema: str) -> None:
        """Create what is missing. A failure, an `OSError` or `sqlite3.Error`, leaves nothing open."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            for pragma in PRAGMAS:
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.executescript(schema)
        except BaseException:
            self._connection.close()
            raise
        self._connection.row_factory = sqlite3.Row

    def read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def write(self, statement: str, values: Sequence[Any] = ()) -> None:
        with self.transaction() as connection:
            connection.execute(statement, values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end, roll back on an exception; a disk that refuses is a `StorageError`."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self._path} could not be written: {error}") from error

    def close(self) -> None:
        self._connection.close()
