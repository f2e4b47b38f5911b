"""The table of jobs on disk: SQLite, written through before a call returns, so that kill -9 loses nothing.

All methods block; `AsyncTable` calls them on one thread. The folder belongs to one process at a time. Audio files lie
beside the table, named after their jobs, until those have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from choral.errors import JobNotFound, QueueFull, StorageError
from choral.jobs.record import ENDED, JobRecord, State, Timings, WebhookAttempt
from choral.jobs.request import JobRequest
from choral.server.database import open_database
from choral.types import Priority

MAX_CRASHES = 3  # of the server with this job under way, before it is taken for the reason
CRASHED = (
    f"the server ended without a word {MAX_CRASHES} times while it worked on this job: the audio may be the reason"
)
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, priority TEXT NOT NULL, state TEXT NOT NULL,
    created_at REAL NOT NULL, queued_at REAL NOT NULL, started_at REAL, ended_at REAL, due_at REAL,
    attempts INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0, duration_s REAL,
    timings TEXT NOT NULL DEFAULT '{}', error TEXT, error_kind TEXT, result TEXT,
    webhook TEXT, webhook_attempts TEXT NOT NULL DEFAULT '[]', webhook_due_at REAL, expires_at REAL
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, priority, queued_at);
CREATE INDEX IF NOT EXISTS jobs_by_age ON jobs (created_at);
CREATE INDEX IF NOT EXISTS jobs_by_webhook ON jobs (webhook_due_at) WHERE webhook_due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_by_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL;
"""


class JobTable:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.sqlite"
        self.audio = folder / "audio"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.audio.mkdir(exist_ok=True, mode=0o700)
            self._db = open_database(self._file, SCHEMA)
            self._db.row_factory = sqlite3.Row
        except (OSError, sqlite3.Error) as error:
            raise StorageError(_cannot_open(folder, error)) from error

    def close(self) -> None:
        self._db.close()

    def insert(self, request: JobRequest, limit: int) -> JobRecord:
        self.require_capacity(limit)
        now = time.time()
        values = (request.id, request.to_json(), request.priority, "queued", now, now)
        self._change(
            "INSERT INTO jobs (id, request, priority, state, created_at, queued_at) VALUES (?,?,?,?,?,?)", values
        )
        return self.show(request.id)

    def cancel(self, job_id: str) -> JobRecord:
        """Ends it where it has not begun; otherwise it is as it was."""
        record = self.show(job_id)
        if record.state in ("queued", "waiting"):
            self.end(dataclasses.replace(record, state="cancelled", error=None, error_kind=None))
            self.drop_audio(job_id)
        return self.show(job_id)

    def take(self, *, batch_first: bool) -> JobRecord | None:
        """The next job, from now on running. Interactive ones first, unless it is the turn of the others."""
        now = time.time()
        self._change("UPDATE jobs SET state='queued', due_at=NULL WHERE state='waiting' AND due_at<=?", (now,))
        order = "priority='interactive'" if batch_first else "priority='batch'"
        with self._transaction():
            query = f"SELECT id FROM jobs WHERE state='queued' ORDER BY {order}, queued_at LIMIT 1"
            row = self._db.execute(query).fetchone()
            if row is None:
                return None
            job_id: str = row["id"]
            self._db.execute(
                "UPDATE jobs SET state='running', started_at=?, attempts=attempts+1 WHERE id=?", (now, job_id)
            )
        return self.show(job_id)

    def requeue(self, job_id: str) -> None:
        """It did not come to its end, for no reason of its own."""
        self._change("UPDATE jobs SET state='queued', attempts=attempts-1 WHERE id=? AND state='running'", (job_id,))

    def reschedule(self, job_id: str, due_at: float, error: str, kind: str) -> None:
        self._change(
            "UPDATE jobs SET state='waiting', due_at=?, error=?, error_kind=? WHERE id=?", (due_at, error, kind, job_id)
        )

    def end(self, job: JobRecord, result: str | None = None) -> None:
        """Writes down what became of it, and that its webhook is due."""
        ended_at = job.ended_at or time.time()
        webhook = ("pending", ended_at) if job.request.callback else (None, None)
        values = {
            "state": job.state,
            "ended_at": ended_at,
            "due_at": None,
            "duration_s": job.duration_s,
            "timings": json.dumps(dataclasses.asdict(job.timings)),
            "error": job.error,
            "error_kind": job.error_kind,
            "result": result,
            "webhook": webhook[0],
            "webhook_due_at": webhook[1],
            "expires_at": ended_at + job.request.keep_s,
        }
        columns = ", ".join(f"{name}=?" for name in values)
        self._change(f"UPDATE jobs SET {columns} WHERE id=?", (*values.values(), job.id))

    def recover(self) -> None:
        """After a start: what was running is run again, unless it was running too often when the process ended."""
        now = time.time()
        self._change("UPDATE jobs SET state='queued', crashes=crashes+1 WHERE state='running'")
        rows = self._db.execute("SELECT id FROM jobs WHERE state='queued' AND crashes>=?", (MAX_CRASHES,)).fetchall()
        for row in rows:
            job = self.show(row["id"])
            self.end(dataclasses.replace(job, state="dead", ended_at=now, error=CRASHED, error_kind="EngineError"))
        kept = {
            row["id"] for row in self._db.execute(f"SELECT id FROM jobs WHERE state NOT IN {_listed(ENDED)}", ENDED)
        }
        for file in self.audio.iterdir():
            if file.name not in kept:
                file.unlink()

    def drop_audio(self, job_id: str) -> None:
        (self.audio / job_id).unlink(missing_ok=True)

    def forget(self, job_id: str) -> None:
        self._change("DELETE FROM jobs WHERE id=?", (job_id,))

    def expire(self) -> None:
        self._change("DELETE FROM jobs WHERE expires_at<=?", (time.time(),))

    # --- reading ---

    def show(self, job_id: str) -> JobRecord:
        row = self._db.execute("SELECT * FROM jobs WHERE id=?", (job_id,)).fetchone()
        if row is None:
            raise JobNotFound(
                f"job {job_id} does not exist: check the id; jobs are forgotten some days after they ended"
            )
        return _record(row)

    def result(self, job_id: str) -> str | None:
        row = self._db.execute("SELECT result FROM jobs WHERE id=?", (job_id,)).fetchone()
        return None if row is None else row["result"]

    def newest(self, limit: int, prefix: str) -> list[JobRecord]:
        query = "SELECT * FROM jobs WHERE substr(id, 1, ?)=? ORDER BY created_at DESC, rowid DESC LIMIT ?"
        return [_record(row) for row in self._db.execute(query, (len(prefix), prefix, limit))]

    def require_capacity(self, limit: int) -> None:
        n_open = self.n_open()
        if n_open >= limit:
            raise QueueFull(f"{n_open} jobs are waiting or running already: try again in a while")

    def n_open(self) -> int:
        query = f"SELECT count(*) FROM jobs WHERE state NOT IN {_listed(ENDED)}"
        return int(self._db.execute(query, ENDED).fetchone()[0])

    def waiting(self) -> dict[str, int]:
        """How many have not begun, by priority."""
        query = "SELECT priority, count(*) FROM jobs WHERE state IN ('queued', 'waiting') GROUP BY priority"
        return dict.fromkeys(get_args(Priority), 0) | dict(self._db.execute(query).fetchall())

    def next_due_at(self) -> float | None:
        due_at: float | None = self._db.execute("SELECT min(due_at) FROM jobs WHERE state='waiting'").fetchone()[0]
        return due_at

    # --- webhooks ---

    def due_webhooks(self, most: int) -> list[JobRecord]:
        query = "SELECT * FROM jobs WHERE webhook_due_at<=? ORDER BY webhook_due_at LIMIT ?"
        return [_record(row) for row in self._db.execute(query, (time.time(), most))]

    def record_webhook(
        self, job_id: str, attempts: Sequence[WebhookAttempt], outcome: str, due_at: float | None
    ) -> None:
        told = json.dumps([dataclasses.asdict(attempt) for attempt in attempts])
        self._change(
            "UPDATE jobs SET webhook=?, webhook_attempts=?, webhook_due_at=? WHERE id=?",
            (outcome, told, due_at, job_id),
        )

    # --- the database ---

    def _change(self, statement: str, values: Sequence[Any] = ()) -> None:
        with self._transaction():
            self._db.execute(statement, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self._file} could not be written: {error}") from error


def _cannot_open(folder: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"another server keeps its jobs in {folder}: stop it, or give this one a folder of its own with --data"
    return f"jobs cannot be kept in {folder}: {error}. Choose a folder that can be written with --data"


def _listed(values: Sequence[str]) -> str:
    return f"({', '.join('?' * len(values))})"


def _record(row: sqlite3.Row) -> JobRecord:
    state: State = row["state"]
    return JobRecord(
        request=JobRequest.from_json(row["request"]),
        state=state,
        worker=None,
        phase=None,
        done_s=(row["duration_s"] or 0.0) if state == "succeeded" else 0.0,
        timings=Timings(**json.loads(row["timings"])),
        is_cancel_wanted=False,
        webhook_attempts=tuple(WebhookAttempt(**each) for each in json.loads(row["webhook_attempts"])),
        **{name: row[name] for name in _PLAIN},
    )


_PLAIN = (
    "created_at", "queued_at", "started_at", "ended_at", "due_at", "attempts", "crashes", "duration_s", "error",
    "error_kind", "webhook",
)  # fmt: skip
