"""How much audio each key has sent, on disk, so that a restart forgives nobody anything.

The event loop only notes; one thread writes what was noted, twice a second, and the rest at the end. So SIGTERM loses
nothing and kill -9 at most the last second. The file belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from choral.common.aio import cancel_tasks
from choral.errors import StorageError
from choral.server.database import open_database

log = logging.getLogger("choral.server")
DAY_S = 86_400.0
OWED_S = 30 * DAY_S  # a job whose key is gone is never charged
WRITE_EVERY_S, PAUSE_S = 0.5, 2.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS heard (id TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL, duration_s REAL);
CREATE INDEX IF NOT EXISTS heard_by_age ON heard (at);
"""


@dataclass(frozen=True)
class UsageEntry:
    id: str  # of the job, or one of its own
    key: str  # the name of the key
    at: float  # seconds since 1970
    duration_s: float | None  # None: nobody has said yet how long this job's audio is


class UsageTable:
    """All methods block."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "usage.sqlite"
        try:
            self._db = open_database(self._file, SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"what the keys have used cannot be kept in {folder} ({error}): stop the server that uses it, or "
                "choose another folder with --data"
            ) from error

    def entries(self) -> list[UsageEntry]:
        """Of the last 24 hours, in their order, and all that are still open."""
        query = "SELECT id, key, at, duration_s FROM heard WHERE at>? OR duration_s IS NULL ORDER BY at"
        return [UsageEntry(*row) for row in self._db.execute(query, (time.time() - DAY_S,))]

    def write(self, entries: Sequence[UsageEntry]) -> None:
        rows = [(entry.id, entry.key, entry.at, entry.duration_s) for entry in entries]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO heard VALUES (?,?,?,?)", rows)
                self._db.execute("DELETE FROM heard WHERE at<=? AND duration_s IS NOT NULL", (time.time() - DAY_S,))
                self._db.execute("DELETE FROM heard WHERE at<=?", (time.time() - OWED_S,))
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self._file} could not be written: {error}") from error

    def close(self) -> None:
        self._db.close()


class UsageWriter:
    """Notes in the event loop, and has them written by a thread."""

    def __init__(self, table: UsageTable) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(1, "choral-usage-disk")
        self._pending: list[UsageEntry] = []
        self._has_pending = asyncio.Event()

    def add(self, entry: UsageEntry) -> None:
        self._pending.append(entry)
        self._has_pending.set()

    async def run(self) -> None:
        """Until it is cancelled. A disk that refuses is asked again, and nothing is forgotten meanwhile."""
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.write()
            except StorageError as error:
                log.error("%s; trying again in %g s", error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)

    async def write(self) -> None:
        entries = list(self._pending)
        self._has_pending.clear()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._table.write, entries)
        except BaseException:
            self._has_pending.set()
            raise
        del self._pending[: len(entries)]

    async def close(self) -> None:
        try:
            await self.write()
        except StorageError as error:
            log.error("%s; what was sent in the last moments is not counted", error)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._table.close)
        self._thread.shutdown()


@asynccontextmanager
async def open_usage(folder: Path) -> AsyncIterator[tuple[UsageWriter, list[UsageEntry]]]:
    """The book, and what was in it."""
    table = await asyncio.to_thread(UsageTable, folder)
    entries = await asyncio.to_thread(table.entries)
    book = UsageWriter(table)
    writing = asyncio.create_task(book.run())
    try:
        yield book, entries
    finally:
        await cancel_tasks([writing])
        await book.close()
