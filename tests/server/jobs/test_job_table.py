"""`JobTable`: order, crashes, expiry, and exclusive access."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from pathlib import Path

import pytest

from choral.errors import JobNotFound, QueueFull, StorageError
from choral.jobs.request import AudioRef, JobRequest
from choral.server.jobs.job_table import MAX_CRASHES, JobTable
from choral.types import Priority, TranscribeOptions

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
    assert [due.id for due in table.due_webhooks(5)] == ["fatal"]
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
