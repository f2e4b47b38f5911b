"""The local queue under faults: a closed engine, slow downloads, a bad disk, errors in results and webhooks."""

from __future__ import annotations

import asyncio
import io
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from choral.common.aio import LoopSupervisor
from choral.errors import EngineClosed
from choral.jobs import outcome_writer
from choral.jobs.job_runner import JobRunner
from choral.jobs.job_states import CRASH_KIND, MAX_ATTEMPTS, MAX_CRASHES
from choral.jobs.record import JobRecord
from choral.options import TranscribeOptions
from choral.server.api_keys import ApiKeyStore
from choral.server.jobs import local_queue, sqlite_store
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob
from choral.server.jobs.sqlite_store import SqliteJobStore
from choral.server.quota import KeyQuotas
from choral.server.settings import JobSettings
from choral.serving.input_sources import OpenFile
from choral.serving.request_events import OnEvent, TranscribeRequest
from choral.serving.settings import ServingSettings
from choral.transcript import Transcript

LIMIT_S = 20.0
Transcribe = Callable[[Any], Awaitable[Transcript]]


class FaultyService:
    """A `Service` whose transcriptions are those of the test."""

    def __init__(self, transcribe: Transcribe) -> None:
        self.models = SimpleNamespace(
            failure=None,
            failed_models={},
            engine_failure=lambda model: None,
            requests_at_once=2,
            prep=ServingSettings(fetches=8, allowed_hosts=("127.0.0.1",)),
        )
        self.settings = SimpleNamespace(queue_limit=64)
        self.metrics, self.loops = MagicMock(), LoopSupervisor()
        self._transcribe = transcribe
        self.n_runs = 0

    def set_failure(self, failure: str | None) -> None:
        self.models.failure = failure
        self.models.failed_models = {} if failure is None else {"tiny": failure}

    def require_supported(self, options: TranscribeOptions, *, task_param: str, model: str | None = None) -> None:
        pass

    async def run(self, request: TranscribeRequest, on_event: OnEvent) -> Transcript:
        self.n_runs += 1
        return await self._transcribe(request.audio)


@asynccontextmanager
async def open_store(service: FaultyService, folder: Path) -> AsyncIterator[SqliteJobStore]:
    billing = JobBilling(ApiKeyStore(), KeyQuotas())
    store = SqliteJobStore(service, JobSettings(job_retry_s=0.01), folder, billing)  # type: ignore[arg-type]
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def submit(store: SqliteJobStore, job_id: str, url: str | None = None, callback: str | None = None) -> None:
    audio = url or OpenFile("a.wav", io.BytesIO(b"audio"))
    options = TranscribeOptions()
    await store.submit(
        NewJob(id=job_id, audio=audio, name="a.wav", options=options, priority="interactive", callback=callback)
    )


async def wait_for(store: SqliteJobStore, job_id: str, is_done: Callable[[JobRecord], bool]) -> JobRecord:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_done(record := await store.show(job_id)):
        assert time.monotonic() < deadline_s, record
        await asyncio.sleep(0.01)
    return record


async def answer(audio: Any) -> Transcript:
    return Transcript("text", (), "en", None, 1.0)


def test_closed_engine_stops_the_queue_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outcome_writer, "PUT_BACK_S", 0.2)
    monkeypatch.setattr(sqlite_store, "ENGINE_POLL_S", 0.05)
    caplog.set_level(logging.INFO)

    async def run() -> int:
        async def refuse(audio: Any) -> Transcript:
            if service.models.failure is None and service.n_runs > 4:
                return await answer(audio)
            raise EngineClosed("the engine is closed")

        service = FaultyService(refuse)
        async with open_store(service, tmp_path) as store:
            await submit(store, "job")
            await asyncio.sleep(0.5)  # the engine says that it works: a run, a pause, a run
            n_runs = service.n_runs
            service.set_failure("the engine is closed")
            await asyncio.sleep(0.5)
            n_stopped = service.n_runs
            await asyncio.sleep(0.3)
            assert service.n_runs == n_stopped <= n_runs + 1
            assert (await store.show("job")).state == "queued"
            service.set_failure(None)
            record = await wait_for(store, "job", lambda record: record.has_ended)
            assert (record.state, record.attempts) == ("succeeded", 1)
        return n_runs

    assert 1 <= asyncio.run(run()) <= 4
    texts = "\n".join(caplog.messages)
    assert "put back: the engine is closed" in texts
    assert "jobs stay queued until the engine works: the engine is closed" in texts


def test_job_that_ends_the_engine_is_dead_after_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "ENGINE_POLL_S", 0.02)

    async def run() -> None:
        async def end_engine(audio: Any) -> Transcript:
            service.set_failure("the engine is closed")
            raise EngineClosed("the engine is closed")

        service = FaultyService(end_engine)
        async with open_store(service, tmp_path) as store:
            await submit(store, "job", callback="http://127.0.0.1:1/done")
            for n_crashes in range(1, MAX_CRASHES + 1):
                record = await wait_for(store, "job", lambda record: record.crashes == n_crashes)  # noqa: B023
                assert (record.attempts, service.n_runs) == (n_crashes, n_crashes)
                service.set_failure(None)
            assert (record.state, record.error_kind, record.webhook) == ("dead", CRASH_KIND, "pending")
            assert list((tmp_path / "audio").iterdir()) == []

    asyncio.run(run())


def test_slow_downloads_do_not_use_run_slots(tmp_path: Path) -> None:
    fetching: list[str] = []

    async def trickle(audio: Any) -> Transcript:
        if not isinstance(audio, str):
            return await answer(audio)
        if "fast" in audio:
            return await answer(audio)
        fetching.append(audio)
        await asyncio.sleep(3600)
        raise AssertionError

    async def run() -> None:
        async with open_store(FaultyService(trickle), tmp_path) as store:
            for number in range(40):
                await submit(store, f"slow{number}", f"http://slow.example/{number}")
            await submit(store, "file")
            await submit(store, "url", "http://fast.example/a.wav")
            for job_id in ("file", "url"):
                assert (await wait_for(store, job_id, lambda record: record.has_ended)).state == "succeeded"
            assert len(fetching) == 2  # of 8 concurrent downloads half are for jobs, and half of those for one host
            assert (await store.cancel("slow0")).state == "cancelled"
            await wait_for(store, "slow2", lambda record: record.state == "running")

    asyncio.run(run())


def test_read_errors_do_not_end_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_queue, "RETRY_PAUSE_S", 0.01)

    class BadDisk:
        """Fails every other read of a connection."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection, self._n_reads = connection, 0

        def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
            if statement.startswith("SELECT"):
                self._n_reads += 1
                if self._n_reads % 2:
                    raise sqlite3.OperationalError("disk I/O error")
            return self._connection.execute(statement, values)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    async def run() -> None:
        service = FaultyService(answer)
        async with open_store(service, tmp_path) as store:
            await submit(store, "job")
            file = store._queue.table._file
            good = file._connection
            file._connection = BadDisk(good)  # type: ignore[assignment]
            store._runner.has_changed.set()
            await asyncio.sleep(0.3)
            file._connection = good
            await submit(store, "next")
            for job_id in ("job", "next"):
                assert (await wait_for(store, job_id, lambda record: record.has_ended)).state == "succeeded"
            assert service.loops.failure is None

    asyncio.run(run())


def test_result_that_cannot_be_stored_fails_its_job_alone(tmp_path: Path) -> None:
    async def strange(audio: Any) -> Transcript:
        return Transcript("half a character: \ud800", (), "en", None, 1.0)

    async def run() -> None:
        service = FaultyService(strange)
        async with open_store(service, tmp_path) as store:
            await submit(store, "job")
            record = await wait_for(store, "job", lambda record: record.has_ended)
            assert (record.state, service.n_runs) == ("dead", MAX_ATTEMPTS)
            assert record.error is not None
            assert record.error.startswith("internal error in Choral (UnicodeEncodeError: ")

    asyncio.run(run())


def test_webhook_that_raises_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def post(sender: Any, record: JobRecord, *rest: Any) -> Any:
        if "bad" in record.id:
            raise OverflowError("port must be 0-65535")
        sent.append(record.id)
        return WebhookResponse(200, None, is_final=True)

    from choral.jobs.webhook_delivery import WebhookResponse, WebhookSender

    monkeypatch.setattr(WebhookSender, "_post", post)

    async def run() -> None:
        service = FaultyService(answer)
        async with open_store(service, tmp_path) as store:
            await submit(store, "bad", callback="http://127.0.0.1:1/bad")
            record = await wait_for(store, "bad", lambda record: record.webhook not in (None, "pending"))
            assert record.webhook == "failed"
            assert "OverflowError" in (record.webhook_attempts[0].error or "")
            await submit(store, "good", callback="http://127.0.0.1:1/good")
            record = await wait_for(store, "good", lambda record: record.webhook not in (None, "pending"))
            assert record.webhook == "delivered"
            assert service.loops.failure is None

    asyncio.run(run())
    assert sent == ["good"]


def test_loop_that_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str | None:
        service = FaultyService(answer)
        monkeypatch.setattr(JobRunner, "capacity", property(lambda runner: 1 // 0))
        async with open_store(service, tmp_path):
            await asyncio.sleep(0.1)
            return service.loops.failure

    assert asyncio.run(run()) == "the job queue has stopped"
