"""The worker's parts, each by itself: who is taken first, what a batch is, back-off, log lines, records as JSON."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from choral.common.backoff import backoff_s
from choral.common.logs import JsonFormatter, TextFormatter
from choral.errors import UsageError
from choral.jobs import ClientSettings, WorkerSettings
from choral.jobs.active_job import ActiveJob
from choral.jobs.batches import BatchFormer
from choral.jobs.heartbeat import RateMeter
from choral.jobs.job_fetcher import JobFetcher
from choral.jobs.job_queue import JobQueue
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.record import FIELDS, read_record
from choral.jobs.redis_connection import connect, redact_redis_url
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.webhook_delivery import signature, webhook_body
from choral.jobs.worker_queue import WorkerQueue
from choral.types import Priority, TranscribeOptions


def request_of(job_id: str, priority: Priority = "interactive") -> JobRequest:
    return JobRequest(
        id=job_id, audio=AudioRef("inline", "", "a"), options=TranscribeOptions(beam_size=2), priority=priority
    )


def held(job_id: str = "job") -> ActiveJob:
    return ActiveJob(request_of(job_id), b"", 1, 0.0, fetch_s=0.5, decode_s=0.25)


@pytest.mark.parametrize("room", [1, 2, 5, 16])
def test_interactive_goes_first_and_batch_never_starves(redis_url: str, room: int) -> None:
    async def taken() -> list[str]:
        async with connect(redis_url) as redis:
            store = JobQueue(redis, RedisKeys())
            ledger = WorkerQueue(store, "worker")
            await store.create_groups()
            for i in range(60):
                await store.submit(request_of(f"batch-{i}", "batch"), b"x", 1000)
                await store.submit(request_of(f"interactive-{i}"), b"x", 1000)
            intake = JobFetcher(ledger, RedisRetry(ledger, "redis"), WorkerSettings(), WorkerMetrics())
            found: list[str] = []
            while len(found) < 60:
                found += [job.id for job in await intake.take(room, 0.1)]
            return found

    order = asyncio.run(taken())
    n_first = 5 * max(1, room)
    n_batch = sum(name.startswith("batch") for name in order[:n_first])
    assert order[0].startswith("interactive")
    assert 0 < n_batch <= n_first / 4
    for kind in ("interactive", "batch"):  # each in the order it was sent
        numbers = [int(name.partition("-")[2]) for name in order if name.startswith(kind)]
        assert numbers == sorted(numbers)


def test_a_worker_that_has_just_come_claims_nothing(redis_url: str) -> None:
    async def claimed() -> list[list[str]]:
        async with connect(redis_url) as redis:
            store = JobQueue(redis, RedisKeys())
            dead, alive = WorkerQueue(store, "dead"), WorkerQueue(store, "alive")
            await store.create_groups()
            await store.submit(request_of("job"), b"x", 10)
            [entry] = await dead.read(["interactive"], 1)
            await dead.begin(entry, 2)
            steady = RedisRetry(alive, "redis")
            intake = JobFetcher(alive, steady, WorkerSettings(claim_after_s=2.0), WorkerMetrics())
            await asyncio.sleep(2.1)
            steady._changed_s += 2.1  # as if Redis had just come back
            early = [job.id for job in await intake.take(1, 0.01)]
            steady._changed_s -= 2.1
            return [early, [job.id for job in await intake.take(1, 0.01)]]

    assert asyncio.run(claimed()) == [[], ["job"]]


def test_jobs_wait_for_their_batch_where_the_runner_wants_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "choral.jobs")

    async def scene(holds: bool) -> list[bool]:
        batches = BatchFormer(3, 0.2, WorkerMetrics(), holds=holds)
        first = batches.join(held())
        waiting = asyncio.create_task(batches.ready(first))
        await asyncio.sleep(0.05)
        seen = [waiting.done()]
        assert batches.join(held()) is batches.join(held()) is first  # the third fills it
        await waiting
        late = batches.join(held())
        assert late is not first
        late.leave(has_succeeded=False)
        await asyncio.wait_for(batches.ready(late), 1.0)  # it closes by itself, with one job
        await asyncio.sleep(0.25)
        first.enter_engine()
        for _ in range(3):
            first.leave(has_succeeded=True)
        return seen

    assert asyncio.run(scene(holds=True)) == [False]
    assert asyncio.run(scene(holds=False)) == [True]
    assert caplog.messages[:2] == [
        "batch 2: size 1, prep 0.75 s, engine 0.00 s, succeeded 0",
        "batch 1: size 3, prep 0.75 s, engine 0.00 s, succeeded 3",
    ]


def test_pauses_double_and_differ() -> None:
    pauses = [[backoff_s(n, 7.0) for _ in range(50)] for n in range(1, 10)]
    for n, own in enumerate(pauses):
        assert 0.8 * 7 * 2**n <= min(own) < max(own) <= 1.2 * 7 * 2**n
    assert 3000 < sum(sum(own) / 50 for own in pauses) < 4000  # nine pauses: about an hour
    assert backoff_s(1000, 1.0, 60.0) <= 72


def test_log_lines_name_the_job() -> None:
    record = logging.LogRecord("choral.jobs", logging.WARNING, "", 0, "failed: %s", ("why",), None)
    record.job = "abc"
    assert "WARNING job abc: failed: why" in TextFormatter().format(record)
    fields = json.loads(JsonFormatter(worker="me").format(record))
    assert (fields["job"], fields["level"], fields["message"], fields["worker"]) == (
        "abc",
        "warning",
        "failed: why",
        "me",
    )


def test_rates_are_those_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("choral.jobs.heartbeat.time.monotonic", lambda: now_s)
    meter = RateMeter()
    for _ in range(300):
        now_s += 1.0
        rates = meter.note(audio_s=(now_s - 100) * 3 if now_s < 340 else 240 * 3, busy_s=(now_s - 100) / 2)
    assert rates.busy_share == pytest.approx(0.5)
    assert rates.audio_per_s == pytest.approx(0.0)


def test_a_record_says_all_as_json_and_no_job_is_none() -> None:
    values: list[bytes | None] = [None] * len(FIELDS)
    assert read_record(values) is None
    given = {
        "request": request_of("job").to_json(),
        "state": "waiting",
        "created_at": "12.5",
        "due_at": "20",
        "cancel": "1",
    }
    record = read_record([given[name].encode() if name in given else None for name in FIELDS])
    assert record is not None
    assert (record.id, record.due_at, record.is_cancel_wanted, record.attempts) == ("job", 20.0, True, 0)
    fields = json.loads(record.to_json())
    assert (fields["id"], fields["state"], fields["request"]["options"]) == ("job", "waiting", {"beam_size": 2})
    body = json.loads(webhook_body(record, b'{"text": "x"}', ""))
    assert (body["id"], body["status"], body["result"]) == ("job", "waiting", {"text": "x"})
    long = json.loads(webhook_body(record, json.dumps({"text": "x" * 300_000}).encode(), "https://example.org/{id}"))
    assert (long["result"], long["result_url"]) == (None, "https://example.org/job")


def test_a_signature_that_anyone_can_compute() -> None:
    digest = (
        "1ba6b8171186efc613e8bcc0cbdab2748f24984d7c5a84faa2637afa0e40d224"  # printf '1.{}' | openssl sha256 -hmac key
    )
    assert signature("key", b"{}", 1) == f"t=1,v1={digest}"


def test_a_request_of_another_version_is_refused() -> None:
    fields = json.loads(request_of("job").to_json())
    assert JobRequest.from_json(json.dumps(fields)) == request_of("job")
    with pytest.raises(UsageError, match="version 2"):
        JobRequest.from_json(json.dumps({**fields, "v": 2}))
    with pytest.raises(UsageError, match="unknown option 'new'"):
        JobRequest.from_json(json.dumps({**fields, "options": {"new": 1}}))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (WorkerSettings, {"batch_size": -1}),
        (WorkerSettings, {"batch_wait_s": 61.0}),
        (WorkerSettings, {"claim_after_s": 1.0}),
        (WorkerSettings, {"max_attempts": 0}),
        (WorkerSettings, {"retry_s": "soon"}),
        (WorkerSettings, {"result_link": "https://example.org/"}),
        (ClientSettings, {"blob_bytes": 2**30}),
        (ClientSettings, {"keep_s": 1}),
    ],
)
def test_settings_that_cannot_be(kind: type, given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        kind(**given)


def test_namespaces_that_cannot_be() -> None:
    for name in ("", "a b", "{x}", "x" * 65):
        with pytest.raises(UsageError, match="namespace"):
            RedisKeys(name)


def test_the_address_of_redis_for_people() -> None:
    assert redact_redis_url("redis://user:secret@host:6380/2") == "host:6380/2"
    assert redact_redis_url("unix:///run/redis.sock?db=1") == "/run/redis.sock"
