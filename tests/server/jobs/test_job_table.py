"""`JobTable`: order, crashes, expiry, exclusive access, jobs of other versions, and a disk that fails."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from choral.errors import JobNotFound, QueueFull, StorageError
from choral.jobs.job_states import MAX_CRASHES
from choral.jobs.queue_store import Delivery
from choral.jobs.request import AudioRef, JobRequest
from choral.options import MAX_CLIP_TIMES, Priority, TranscribeOptions
from choral.server.jobs.job_table import JobTable

LIMIT = 4


def request(job_id: str, priority: Priority = "interactive", **fields: object) -> JobRequest:
    audio = AudioRef("url", "https://example.org/a.mp3", "a.mp3")
    return JobRequest(id=job_id, audio=audio, options=TranscribeOptions(), priority=priority, **fields)  # type: ignore[arg-type]


def test_interactive_jobs_first_unless_batch_first(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    for name, priority in (("b1", "batch"), ("i1", "interactive"), ("i2", "interactive"), ("b2", "batch")):
        table.insert(request(name, priority), LIMIT)  # type: ignore[arg-type]
    with pytest.raises(QueueFull, match="4 jobs are already waiting or running"):
        table.insert(request("i3"), LIMIT)
    taken = [table.take(batch_first=first) for first in (False, True, False, False, False)]
    assert [record and record.id for record in taken] == ["i1", "b1", "i2", "b2", None]
    table.requeue("i2")
    record = table.take(batch_first=False)
    assert record is not None
    assert (record.id, record.attempts) == ("i2", 1)
    table.close()


def test_job_that_crashes_the_server_repeatedly_is_dead(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "orphan").write_bytes(b"an upload that was cut off")
    for crash in range(MAX_CRASHES):
        table = JobTable(tmp_path)
        if crash == 0:
            table.insert(request("fatal", callback="https://example.org/done"), LIMIT)
        table.recover()
        assert table.take(batch_first=False) is not None
        table.close()
    table = JobTable(tmp_path)
    table.recover()
    record = table.show("fatal")
    assert (record.state, record.crashes, record.webhook) == ("dead", MAX_CRASHES, "pending")
    assert record.error is not None
    assert "the audio may be the cause" in record.error
    assert table.due_webhooks(5) == [("fatal", "https://example.org/done")]
    assert list((tmp_path / "audio").iterdir()) == []
    table.close()


def test_rescheduled_job_waits_until_due(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    table.insert(request("one"), LIMIT)
    assert table.take(batch_first=False) is not None
    due_at = time.time() + 0.2
    table.reschedule("one", due_at, "the network is away", "FetchFailed")
    assert table.take(batch_first=False) is None
    assert (table.show("one").state, table.next_due_at()) == ("waiting", due_at)
    time.sleep(max(0.0, due_at - time.time()))
    again = table.take(batch_first=False)
    assert again is not None
    assert again.attempts == 2
    table.close()


def test_what_is_due_moves_with_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = JobTable(tmp_path)
    for name in ("waiting", "ended"):
        table.insert(request(name, callback="https://example.org/done"), LIMIT)
        assert table.take(batch_first=False) is not None
    now, monotonic_s = time.time(), time.monotonic()
    table.reschedule("waiting", now + 10, "the network is away", "FetchFailed")
    table.end(dataclasses.replace(table.show("ended"), state="failed"))
    table.record_webhook("ended", Delivery((), "pending", 10.0))
    monkeypatch.setattr(time, "time", lambda: now + 9 - 3600)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic_s + 9)
    assert (table.take(batch_first=False), table.due_webhooks(5)) == (None, [])
    monkeypatch.setattr(time, "time", lambda: now + 11 - 3600)
    assert table.due_webhooks(5) == [("ended", "https://example.org/done")]
    assert table.take(batch_first=False) is not None
    table.close()


def test_expired_jobs_are_deleted(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    record = table.insert(request("old", keep_s=60), LIMIT)
    table.end(dataclasses.replace(record, state="failed", ended_at=time.time() - 61, error="no", error_kind="NotAudio"))
    table.insert(request("new"), LIMIT)
    table.delete_expired()
    assert [found.id for found in table.newest(10, "")] == ["new"]
    assert table.newest(10, "o") == []
    assert table.n_open() == 1
    with pytest.raises(JobNotFound):
        table.show("old")
    table.close()


def _try_to_open(folder: Path, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        JobTable(folder).close()
    except StorageError as error:
        answers.put(str(error))
    else:
        answers.put("opened")


def test_folder_belongs_to_one_process(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    other = context.Process(target=_try_to_open, args=(tmp_path, answers))
    other.start()
    assert answers.get() == (
        f"another server keeps its jobs in {tmp_path}: stop it, or choose another folder with --data"
    )
    other.join()
    table.close()


def rewrite(table: JobTable, job_id: str, request_text: str) -> None:
    """Store the request as another version would have."""
    table._file.write("UPDATE jobs SET request=? WHERE id=?", (request_text, job_id))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["options"].update(dialect="scots"),
        lambda fields: fields["options"].update(temperature=[1.0] * 200_000),
        lambda fields: fields.update(v=2),
        lambda fields: fields.update(shade="blue"),
        lambda fields: fields.pop("audio"),
        lambda fields: fields.update(audio={"kind": "url"}),
        lambda fields: fields.update(options=None),
        lambda fields: fields.clear(),
    ],
)
def test_job_of_another_version_fails_alone(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    table = JobTable(tmp_path)
    table.insert(request("other", callback="https://example.org/done"), LIMIT)
    table.insert(request("good"), LIMIT)
    fields = json.loads(request("other").to_json())
    change(fields)
    rewrite(table, "other", json.dumps(fields))
    assert [record.state for record in table.newest(10, "")] == ["queued", "queued"]
    record = table.take(batch_first=False)
    assert record is not None
    assert record.id == "good"
    failed = table.show("other")
    assert (failed.state, failed.error_kind) == ("failed", "UsageError")
    assert failed.error
    table.recover()
    assert len(table.newest(10, "")) == 2
    table.close()


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "[" * 100_000])
def test_damaged_request_fails_alone(tmp_path: Path, text: str) -> None:
    table = JobTable(tmp_path)
    table.insert(request("damaged"), LIMIT)
    table.insert(request("good"), LIMIT)
    rewrite(table, "damaged", text)
    record = table.take(batch_first=False)
    assert record is not None
    assert record.id == "good"
    assert table.show("damaged").state == "failed"
    table.close()


def test_unreadable_job_that_crashed_the_server_does_not_prevent_the_start(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    table.insert(request("other"), LIMIT)
    table._file.write("UPDATE jobs SET state='running', crashes=?", (MAX_CRASHES - 1,))
    rewrite(table, "other", json.dumps({"v": 7}))
    table.recover()
    assert table.show("other").state == "dead"
    table.close()


def test_jobs_of_busy_hosts_stay_queued(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    for name, host in (("slow1", "slow.example"), ("slow2", "SLOW.example"), ("other", "fast.example")):
        audio = AudioRef("url", f"https://{host}/a.mp3", "a.mp3")
        table.insert(dataclasses.replace(request(name), audio=audio), LIMIT)
    table.insert(dataclasses.replace(request("local"), audio=AudioRef("path", "/a.mp3", "a.mp3")), LIMIT)
    taken = [
        table.take(batch_first=False, skip_hosts={"slow.example"}),
        table.take(batch_first=False, with_urls=False),
        table.take(batch_first=False, with_urls=False),
        table.take(batch_first=False),
    ]
    assert [record and record.id for record in taken] == ["other", "local", None, "slow1"]
    table.close()


def test_listing_leaves_long_options_out(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    options = TranscribeOptions(clip_timestamps=tuple(float(i) for i in range(MAX_CLIP_TIMES)), language="en")
    for number in range(40):
        table.insert(dataclasses.replace(request(f"long{number}"), options=options), 100)
    started_s = time.monotonic()
    records = table.newest(100, "")
    assert time.monotonic() - started_s < 1.0
    assert {record.request.options for record in records} == {TranscribeOptions()}
    assert table.show("long0").request.options == options
    table.close()


class FailingConnection:
    """A connection whose next statements fail as on a bad disk."""

    def __init__(self, connection: sqlite3.Connection, *errors: sqlite3.Error) -> None:
        self._connection, self._errors = connection, list(errors)

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._errors:
            raise self._errors.pop(0)
        return self._connection.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), sqlite3.DatabaseError("malformed")])
def test_disk_errors_are_storage_errors(tmp_path: Path, error: sqlite3.Error) -> None:
    table = JobTable(tmp_path)
    table.insert(request("one"), LIMIT)
    connection = table._file._connection
    calls = (
        JobTable.n_queued,
        JobTable.next_due_at,
        lambda table: table.show("one"),
        lambda table: table.newest(5, ""),
    )
    for call in calls:
        table._file._connection = FailingConnection(connection, error)  # type: ignore[assignment]
        with pytest.raises(StorageError, match=r"jobs.sqlite could not be read: "):
            call(table)
    table._file._connection = FailingConnection(connection, error)  # type: ignore[assignment]
    with pytest.raises(StorageError, match=r"jobs.sqlite could not be written: "):
        table.requeue("one")
    table.close()


def test_failed_commit_leaves_the_file_usable(tmp_path: Path) -> None:
    table = JobTable(tmp_path)
    table.insert(request("one"), LIMIT)
    connection = table._file._connection

    class FailsToCommit(FailingConnection):
        def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
            if statement == "COMMIT" and self._errors:
                raise self._errors.pop(0)
            return connection.execute(statement, values)

    table._file._connection = FailsToCommit(connection, sqlite3.OperationalError("disk is full"))  # type: ignore[assignment]
    with pytest.raises(StorageError):
        table.insert(request("two"), LIMIT)
    table.insert(request("two"), LIMIT)
    assert table.n_open() == 2
    table.close()
