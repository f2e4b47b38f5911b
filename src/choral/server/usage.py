"""The audio that each API key has used, on disk, so that quotas survive a restart.

The event loop only appends entries; one thread writes them twice a second, and the rest at shutdown: SIGTERM loses
nothing, kill -9 at most the last second. The file belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from choral.common.aio import LoopSupervisor, cancel_tasks
from choral.errors import StorageError
from choral.server.sqlite_file import SqliteFile

log = logging.getLogger("choral.server")
DAY_S = 86_400.0
KEEP_DEFERRED_S = 30 * DAY_S  # jobs of a key that was removed are never charged
WRITE_EVERY_S, RETRY_PAUSE_S = 0.5, 2.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (id TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL, duration_s REAL);
DROP INDEX IF EXISTS heard_by_age;
CREATE INDEX IF NOT EXISTS usage_by_age ON usage (at);
"""


@dataclass(frozen=True)
class UsageEntry:
    id: str  # of the job, or a random one
    key: str  # the name of the key
    at: float  # seconds since 1970
    duration_s: float | None  # None: the duration of this job's audio is not known yet


class UsageTable:
    """All methods block."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = SqliteFile(folder / "usage.sqlite", SCHEMA, renamed={"heard": "usage"})  # its name in 0.1
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"the usage of API keys cannot be kept in {folder} ({error}): stop the server that uses it, or "
                "choose another folder with --data"
            ) from error

    def entries(self) -> list[UsageEntry]:
        """Those of the last 24 hours in order, and all whose duration is not known."""
        query = "SELECT id, key, at, duration_s FROM usage WHERE at>? OR duration_s IS NULL ORDER BY at"
        return [UsageEntry(*row) for row in self._file.read(query, (time.time() - DAY_S,))]

    def write(self, entries: Sequence[UsageEntry]) -> None:
        now = time.time()
        with self._file.transaction() as connection:
            rows = [dataclasses.astuple(entry) for entry in entries]
            connection.executemany("INSERT OR REPLACE INTO usage VALUES (?,?,?,?)", rows)
            connection.execute("DELETE FROM usage WHERE at<=? AND duration_s IS NOT NULL", (now - DAY_S,))
            connection.execute("DELETE FROM usage WHERE at<=?", (now - KEEP_DEFERRED_S,))

    def close(self) -> None:
        self._file.close()


class UsageWriter:
    """Collects entries in the event loop and writes them on a thread."""

    def __init__(self, table: UsageTable) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(1, "choral-usage-disk")
        self._pending: list[UsageEntry] = []
        self._has_pending = asyncio.Event()

    def add(self, entry: UsageEntry) -> None:
        self._pending.append(entry)
        self._has_pending.set()

    async def run(self) -> None:
        """Write until cancelled; a failed write is retried, and its entries are kept."""
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.write()
            except StorageError as error:
                log.error("%s; trying again in %g s", error, RETRY_PAUSE_S)
                await asyncio.sleep(RETRY_PAUSE_S)

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
            log.error("%s; the usage of the last moments is not counted", error)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._table.close)
        self._thread.shutdown()


@asynccontextmanager
async def open_usage(folder: Path, loops: LoopSupervisor) -> AsyncIterator[tuple[UsageWriter, list[UsageEntry]]]:
    """A writer, and the entries from before."""
    table = await asyncio.to_thread(UsageTable, folder)
    entries = await asyncio.to_thread(table.entries)
    writer = UsageWriter(table)
    writing = loops.start(writer.run(), "the record of audio used by API keys")
    try:
        yield writer, entries
    finally:
        await cancel_tasks([writing])
        await writer.close()
