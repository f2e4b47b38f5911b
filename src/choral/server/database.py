"""SQLite files of one process at a time, written through before a call returns, so that kill -9 loses nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

PRAGMAS = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL")


def open_database(file: Path, schema: str) -> sqlite3.Connection:
    """Makes what is not there yet. A failure, an `OSError` or `sqlite3.Error`, leaves nothing open."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = sqlite3.connect(file, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.executescript(schema)
    except BaseException:
        database.close()
        raise
    return database
