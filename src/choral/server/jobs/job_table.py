"""The jobs on disk: a SQLite table, and the audio files of jobs that have not ended, named after their ids.

All methods block; `LocalQueue` calls them on one thread. The folder belongs to one process at a time. A job that this
version cannot read, because another one stored it, is shown as far as possible and fails when it is taken. A method
that fails changed nothing, or can be repeated.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from choral.errors import JobNotFound, QueueFull, StorageError, UsageError
from choral.jobs.job_states import CRASH_KIND, ENDED, MAX_CLOCK_STEP_S, MAX_CRASHES, WEBHOOK_KEEP_S
from choral.jobs.queue_store import Delivery
from choral.jobs.record import JobRecord, job_not_found
from choral.jobs.request import JobRequest
from choral.options import Priority
from choral.server.jobs.job_rows import RECORD_COLUMNS, audio_host, json_object, readable_request, record_of
from choral.server.sqlite_file import SqliteFile

log = logging.getLogger("choral.server")
CRASHED = "the server or its engine crashed {} times while it ran this job: the audio may be the cause"
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
        self._clock_offset_s = time.time() - time.monotonic()

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
        return JobRecord(request=request, created_at=now, queued_at=now)

    def cancel(self, job_id: str) -> JobRecord:
        """End a job that has not started; any other stays as it is."""
        record = self.show(job_id)
        if record.state in ("queued", "waiting"):
            self.end(dataclasses.replace(record, state="cancelled", error=None, error_kind=None))
            self.delete_audio(job_id)
        return self.show(job_id)

    def take(self, *, batch_first: bool, with_urls: bool = True, skip_hosts: Collection[str] = ()) -> JobRecord | None:
        """Mark the next queued job as running. Interactive jobs come first unless `batch_first`.

        Jobs with audio on `skip_hosts`, and without `with_urls` all that have their audio elsewhere, stay queued.
        """
        self._follow_clock()
        now = time.time()
        self._file.write("UPDATE jobs SET state='queued', due_at=NULL WHERE state='waiting' AND due_at<=?", (now,))

        for priority in ("batch", "interactive") if batch_first else ("interactive", "batch"):
            while (row := self._first_queued(priority, with_urls, skip_hosts)) is not None:
                try:
                    request = JobRequest.from_json(row["request"])
                except UsageError as error:
                    self._fail_unreadable(record_of(row), error)
                    continue
                record = record_of(row, request)
                self._file.write(
                    "UPDATE jobs SET state='running', started_at=?, attempts=attempts+1 WHERE id=?", (now, record.id)
                )
                return dataclasses.replace(record, state="running", started_at=now, attempts=record.attempts + 1)
        return None

    def _first_queued(self, priority: str, with_urls: bool, skip_hosts: Collection[str]) -> sqlite3.Row | None:
        def may_start(row: sqlite3.Row) -> bool:
            host = audio_host(row["request"])
            return host is None or (with_urls and host not in skip_hosts)

        query = f"SELECT {RECORD_COLUMNS} FROM jobs WHERE state='queued' AND priority=? ORDER BY queued_at"
        with self._file.rows(query, (priority,)) as rows:
            return next(filter(may_start, rows), None)

    def _fail_unreadable(self, record: JobRecord, error: UsageError) -> None:
        log.error("failed: %s", error, extra={"job": record.id})
        self.end(dataclasses.replace(record, state="failed", error=str(error), error_kind="UsageError"))
        self.delete_audio(record.id)

    def requeue(self, job_id: str, max_crashes: int = 0) -> str:
        """Put back a running job, as `QueueStore.requeue` does; stored or dead."""
        count = "crashes=crashes+1" if max_crashes else "attempts=attempts-1"
        self._file.write(f"UPDATE jobs SET state='queued', {count} WHERE id=? AND state='running'", (job_id,))
        return "dead" if max_crashes and job_id in self._end_crashed(max_crashes) else "stored"

    def reschedule(self, job_id: str, due_at: float, error: str | None, kind: str | None) -> None:
        self._file.write(
            "UPDATE jobs SET state='waiting', due_at=?, error=?, error_kind=? WHERE id=?", (due_at, error, kind, job_id)
        )

    def end(self, job: JobRecord, result: str | None = None) -> None:
        """Store the outcome, and that its webhook is due."""
        ended_at = job.ended_at or time.time()
        keep_s = job.request.keep_s
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
            "expires_at": ended_at + (max(keep_s, WEBHOOK_KEEP_S) if job.request.callback else keep_s),
        }
        columns = ", ".join(f"{name}=?" for name in values)
        self._file.write(f"UPDATE jobs SET {columns} WHERE id=?", (*values.values(), job.id))

    def recover(self) -> None:
        """After a start: requeue the jobs that were running, and end those that crashed the server too often."""
        self._file.write("UPDATE jobs SET state='queued', crashes=crashes+1 WHERE state='running'")
        self._end_crashed(MAX_CRASHES)
        kept = {row["id"] for row in self._file.read(f"SELECT id FROM jobs WHERE {NOT_ENDED}", ENDED)}
        for file in self.audio.iterdir():
            if file.name not in kept:
                self.delete_audio(file.name)

    def _end_crashed(self, max_crashes: int) -> list[str]:
        rows = self._file.read("SELECT id FROM jobs WHERE state='queued' AND crashes>=?", (max_crashes,))
        for job in [self.show(row["id"]) for row in rows]:
            text = CRASHED.format(job.crashes)
            self.end(dataclasses.replace(job, state="dead", error=text, error_kind=CRASH_KIND))
            self.delete_audio(job.id)
        return [row["id"] for row in rows]

    def delete_audio(self, job_id: str) -> None:
        try:
            (self.audio / job_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning("its audio could not be deleted (%s): the next start tries again", error, extra={"job": job_id})

    def delete(self, job_id: str) -> None:
        self._file.write("DELETE FROM jobs WHERE id=?", (job_id,))

    def delete_expired(self) -> None:
        self._file.write("DELETE FROM jobs WHERE expires_at<=?", (time.time(),))

    # --- queries ---

    def show(self, job_id: str) -> JobRecord:
        rows = self._file.read(f"SELECT {RECORD_COLUMNS} FROM jobs WHERE id=?", (job_id,))
        if not rows:
            raise job_not_found(job_id)
        return record_of(rows[0])

    def result(self, job_id: str) -> str | None:
        rows = self._file.read("SELECT result FROM jobs WHERE id=?", (job_id,))
        return rows[0]["result"] if rows else None

    def newest(self, limit: int, prefix: str) -> list[JobRecord]:
        """Without the longest options: see `JobRequest.from_json`."""
        query = (
            f"SELECT {RECORD_COLUMNS} FROM jobs WHERE substr(id, 1, ?)=? ORDER BY created_at DESC, rowid DESC LIMIT ?"
        )
        with self._file.rows(query, (len(prefix), prefix, limit)) as rows:
            return [record_of(row, readable_request(row, is_brief=True)) for row in rows]

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

    def due_webhooks(self, limit: int) -> list[tuple[str, str]]:
        """Ids and callbacks of jobs whose webhook is due, the longest due first."""
        self._follow_clock()
        query = "SELECT id, request FROM jobs WHERE webhook_due_at<=? ORDER BY webhook_due_at LIMIT ?"
        rows = self._file.read(query, (time.time(), limit))
        return [(row["id"], str(json_object(row["request"]).get("callback") or "")) for row in rows]

    def record_webhook(self, job_id: str, delivery: Delivery) -> str:
        """The job is kept longer only while its webhook is pending. Returns stored, or rejected if it was deleted."""
        try:
            keep_s = self.show(job_id).request.keep_s
        except JobNotFound:
            return "rejected"
        attempts = json.dumps([dataclasses.asdict(attempt) for attempt in delivery.attempts])
        if delivery.outcome == "pending":
            due_at, keep_s = time.time() + delivery.delay_s, max(keep_s, WEBHOOK_KEEP_S)
        else:
            due_at = None
        self._file.write(
            "UPDATE jobs SET webhook=?, webhook_attempts=?, webhook_due_at=?, expires_at=ended_at+? WHERE id=?",
            (delivery.outcome, attempts, due_at, keep_s, job_id),
        )
        return "stored"

    def _follow_clock(self) -> None:
        """Move what is due with a wall clock that was set back: it would otherwise wait for that much longer."""
        offset_s = time.time() - time.monotonic()
        jump_s = offset_s - self._clock_offset_s
        if jump_s < -MAX_CLOCK_STEP_S:
            log.warning("the clock was set back by %.0f s: retries and webhooks are due earlier by as much", -jump_s)
            due = "UPDATE jobs SET due_at=due_at+?, webhook_due_at=webhook_due_at+?"
            self._file.write(f"{due} WHERE due_at IS NOT NULL OR webhook_due_at IS NOT NULL", (jump_s, jump_s))
        self._clock_offset_s = offset_s


def _cannot_open(folder: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"another server keeps its jobs in {folder}: stop it, or choose another folder with --data"
    return f"jobs cannot be kept in {folder}: {error}. Choose a writable folder with --data"
