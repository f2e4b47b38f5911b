"""A SQLite file of one process at a time, written through before a call returns, so that kill -9 loses nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from choral.errors import StorageError

PRAGMAS = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL")
# Errors of the caller; every other one is of the disk or the file on it.
_PROGRAMMING_ERRORS = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError)


class SqliteFile:
    """All methods block; a disk that refuses, or a damaged file, is a `StorageError`."""

    def __init__(self, path: Path, schema: str, renamed: Mapping[str, str] | None = None) -> None:
        """Create what is missing; `renamed` has tables of older versions, with their names in the schema.

        A failure, an `OSError` or `sqlite3.Error`, leaves nothing open.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            for pragma in PRAGMAS:
                self._connection.execute(f"PRAGMA {pragma}")
            tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")}
            for old, new in (renamed or {}).items():
                if old in tables and new not in tables:
                    self._connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
            self._connection.executescript(schema)
        except BaseException:
            self._connection.close()
            raise
        self._connection.row_factory = sqlite3.Row

    def read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        with self._storage_errors("read"):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Iterator[sqlite3.Row]]:
        """The rows one by one, so that not all of them are in memory; nothing may be written meanwhile."""
        with self._storage_errors("read"), contextlib.closing(self._connection.execute(query, values)) as cursor:
            yield cursor

    def write(self, statement: str, values: Sequence[Any] = ()) -> None:
        with self.transaction() as connection:
            connection.execute(statement, values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end, roll back on an exception."""
        with self._storage_errors("written"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite rolls back by itself after some errors
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _storage_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except _PROGRAMMING_ERRORS:
            raise
        except sqlite3.DatabaseError as error:
            raise StorageError(f"{self._path} could not be {action}: {error}") from error

    def close(self) -> None:
        self._connection.close()
