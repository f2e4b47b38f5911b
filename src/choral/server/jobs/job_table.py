"""The jobs on disk: a SQLite table, and the audio files of jobs that have not ended, named after their ids.

All methods block; `AsyncTable` calls them on one thread. The folder belongs to one process at a time.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from choral.errors import JobNotFound, QueueFull, StorageError
from choral.jobs.record import ENDED, JobRecord, State, Timings, WebhookAttempt
from choral.jobs.request import JobRequest
from choral.server.sqlite_file import SqliteFile
from choral.types import Priority

MAX_CRASHES = 3  # of the server while it ran a job, before the job is assumed to be the cause
CRASHED = f"the server crashed {MAX_CRASHES} times while it ran this job: the audio may be the cause"
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
NOT_ENDED = f"state NOT IN ({', '.join('?' * len(ENDED))})"


class JobTable:
    def __init__(self, folder: Path) -> None:
        self.audio = folder / "audio"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.audio.mkdir(exist_ok=True, mode=0o700)
            self._file = SqliteFile(folder / "jobs.sqlite", SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(_cannot_open(folder, error)) from error

    def close(self) -> None:
        self._file.close()

    def insert(self, request: JobRequest, limit: int) -> JobRecord:
        if (n_open := self.n_open()) >= limit:
            raise QueueFull(f"{n_open} jobs are already waiting or running: try again later")
        now = time.time()
        self._file.write(
            "INSERT INTO jobs (id, request, priority, state, created_at, queued_at) VALUES (?,?,?,?,?,?)",
            (request.id, request.to_json(), request.priority, "queued", now, now),
        )
        return self.show(request.id)

    def cancel(self, job_id: str) -> JobRecord:
        """End a job that has not started; any other stays as it is."""
        record = self.show(job_id)
        if record.state in ("queued", "waiting"):
            self.end(dataclasses.replace(record, state="cancelled", error=None, error_kind=None))
            self.delete_audio(job_id)
        return self.show(job_id)

    def take(self, *, batch_first: bool) -> JobRecord | None:
        """Mark the next queued job as running. Interactive jobs come first unless `batch_first`."""
        now = time.time()
        self._file.write("UPDATE jobs SET state='queued', due_at=NULL WHERE state='waiting' AND due_at<=?", (now,))
        order = "priority='interactive'" if batch_first else "priority='batch'"
        with self._file.transaction() as connection:
            query = f"SELECT id FROM jobs WHERE state='queued' ORDER BY {order}, queued_at LIMIT 1"
            row = connection.execute(query).fetchone()
            if row is None:
                return None
            connection.execute(
                "UPDATE jobs SET state='running', started_at=?, attempts=attempts+1 WHERE id=?", (now, row["id"])
            )
        return self.show(row["id"])

    def requeue(self, job_id: str) -> None:
        """Put back a job that was interrupted through no fault of its own."""
        self._file.write(
            "UPDATE jobs SET state='queued', attempts=attempts-1 WHERE id=? AND state='running'", (job_id,)
        )

    def reschedule(self, job_id: str, due_at: float, error: str, kind: str) -> None:
        self._file.write(
            "UPDATE jobs SET state='waiting', due_at=?, error=?, error_kind=? WHERE id=?", (due_at, error, kind, job_id)
        )

    def end(self, job: JobRecord, result: str | None = None) -> None:
        """Store the outcome, and that its webhook is due."""
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
        self._file.write(f"UPDATE jobs SET {columns} WHERE id=?", (*values.values(), job.id))

    def recover(self) -> None:
        """After a start: requeue the jobs that were running, and end those that crashed the server too often."""
        self._file.write("UPDATE jobs SET state='queued', crashes=crashes+1 WHERE state='running'")
        for row in self._file.read("SELECT id FROM jobs WHERE state='queued' AND crashes>=?", (MAX_CRASHES,)):
            job = self.show(row["id"])
            self.end(dataclasses.replace(job, state="dead", error=CRASHED, error_kind="EngineError"))
        kept = {row["id"] for row in self._file.read(f"SELECT id FROM jobs WHERE {NOT_ENDED}", ENDED)}
        for file in self.audio.iterdir():
            if file.name not in kept:
                file.unlink()

    def delete_audio(self, job_id: str) -> None:
        (self.audio / job_id).unlink(missing_ok=True)

    def delete(self, job_id: str) -> None:
        self._file.write("DELETE FROM jobs WHERE id=?", (job_id,))

    def delete_expired(self) -> None:
        self._file.write("DELETE FROM jobs WHERE expires_at<=?", (time.time(),))

    # --- queries ---

    def show(self, job_id: str) -> JobRecord:
        rows = self._file.read("SELECT * FROM jobs WHERE id=?", (job_id,))
        if not rows:
            raise JobNotFound(f"job {job_id} does not exist: check the id; jobs are deleted some days after they ended")
        return _record(rows[0])

    def result(self, job_id: str) -> str | None:
        rows = self._file.read("SELECT result FROM jobs WHERE id=?", (job_id,))
        return rows[0]["result"] if rows else None

    def newest(self, limit: int, prefix: str) -> list[JobRecord]:
        query = "SELECT * FROM jobs WHERE substr(id, 1, ?)=? ORDER BY created_at DESC, rowid DESC LIMIT ?"
        return [_record(row) for row in self._file.read(query, (len(prefix), prefix, limit))]

    def n_open(self) -> int:
        return int(self._file.read(f"SELECT count(*) FROM jobs WHERE {NOT_ENDED}", ENDED)[0][0])

    def n_queued(self) -> dict[str, int]:
        """How many jobs have not started, by priority."""
        query = "SELECT priority, count(*) FROM jobs WHERE state IN ('queued', 'waiting') GROUP BY priority"
        return dict.fromkeys(get_args(Priority), 0) | {row[0]: row[1] for row in self._file.read(query)}

    def next_due_at(self) -> float | None:
        due_at: float | None = self._file.read("SELECT min(due_at) FROM jobs WHERE state='waiting'")[0][0]
        return due_at

    # --- webhooks ---

    def due_webhooks(self, limit: int) -> list[JobRecord]:
        query = "SELECT * FROM jobs WHERE webhook_due_at<=? ORDER BY webhook_due_at LIMIT ?"
        return [_record(row) for row in self._file.read(query, (time.time(), limit))]

    def record_webhook(
        self, job_id: str, attempts: Sequence[WebhookAttempt], outcome: str, due_at: float | None
    ) -> None:
        self._file.write(
            "UPDATE jobs SET webhook=?, webhook_attempts=?, webhook_due_at=? WHERE id=?",
            (outcome, json.dumps([dataclasses.asdict(attempt) for attempt in attempts]), due_at, job_id),
        )


def _cannot_open(folder: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"another server keeps its jobs in {folder}: stop it, or choose another folder with --data"
    return f"jobs cannot be kept in {folder}: {error}. Choose a writable folder with --data"


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
        **{name: row[name] for name in PLAIN_COLUMNS},
    )


PLAIN_COLUMNS = (
    "created_at", "queued_at", "started_at", "ended_at", "due_at", "attempts", "crashes", "duration_s", "error",
    "error_kind", "webhook",
)  # fmt: skip
