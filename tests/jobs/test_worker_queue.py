"""Every state transition of a job on a real Redis.

All tests also run on a Redis in cluster mode, which refuses scripts whose keys are on different nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis as library

from choral.errors import FetchFailed, NotAudio, UsageError
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import PRIORITIES, UPLOAD_KEEP_S, JobQueue
from choral.jobs.record import JobRecord, WebhookAttempt, WorkerStatus, transcript_from_json
from choral.jobs.redis_connection import connect
from choral.jobs.redis_keys import GROUP, RedisKeys
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.scripts import REMOVE_IDLE_CONSUMERS, WRITE_BLOB
from choral.jobs.webhook_delivery import Delivery
from choral.jobs.worker_queue import StreamEntry, WorkerQueue
from choral.types import Priority, Segment, TranscribeOptions, Transcript, Word
from support.redis_server import RedisServer, free_port

SEGMENT = Segment(0, 0, 0.0, 2.5, " Äther.", (1, 2), 0.0, -0.25, 1.1, 0.01, (Word(" Äther.", 0.1, 0.5, 0.75),))
TRANSCRIPT = Transcript(" Äther.", (SEGMENT,), "de", 0.9, 2.5, warnings=("noisy",))
STATUS = WorkerStatus(
    name="one", host="here", model="tiny", device="cpu", started_at=0.0, in_prep=0, in_engine=0, succeeded=0,
    failed=0, audio_per_s=0.0, busy_share=0.0, is_stopping=False,
)  # fmt: skip
CALLBACK = "http://receiver.example.org/done"
INLINE = AudioRef("inline", "", "talk.mp3")
DELIVERED = Delivery((WebhookAttempt(1.0, 200, None),), "delivered", 0.0)


class QueueScenario:
    """A client and two workers."""

    def __init__(self, url: str) -> None:
        self.redis = connect(url)
        self.keys = RedisKeys()
        self.jobs = JobQueue(self.redis, self.keys)
        self.one, self.two = WorkerQueue(self.jobs, "one"), WorkerQueue(self.jobs, "two")

    async def submit(
        self,
        job_id: str = "job",
        priority: Priority = "interactive",
        callback: str | None = None,
        keep_s: int = 3600,
        audio: AudioRef = INLINE,
    ) -> str:
        options = TranscribeOptions(language="de", temperature=(0.0, 0.5))
        request = JobRequest(
            id=job_id, audio=audio, options=options, priority=priority, callback=callback, keep_s=keep_s
        )
        return await self.jobs.submit(request, b"\0\xff" if audio.kind == "inline" else b"", 3)

    async def submit_blob(self, job_id: str = "job", **settings: Any) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"RIFF"
            yield b"data"

        await self.jobs.write_blob("blob", chunks(), 8)
        return await self.submit(job_id, audio=AudioRef("blob", "blob", "talk.mp3"), **settings)

    async def start(self, queue: WorkerQueue) -> ActiveJob:
        started = await self.start_any(queue)
        assert isinstance(started, ActiveJob), started
        return started

    async def start_any(self, queue: WorkerQueue) -> ActiveJob | str:
        """A waiting job, or one of another worker."""
        entries = await queue.read(PRIORITIES, 1) or await queue.claim("interactive", 1, 0.0)
        return await queue.start(entries[0], 2)

    async def record(self, job_id: str = "job") -> JobRecord:
        found = (await self.jobs.records([job_id]))[0]
        assert found is not None
        return found

    async def n_entries(self) -> int:
        return sum([await self.redis.xlen(self.keys.queue(priority)) for priority in PRIORITIES])


RunScenario = Callable[[Callable[[QueueScenario], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def cluster(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(
        tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes", "--cluster-port", str(free_port())
    ) as server:
        with library.Redis.from_url(server.url) as plain:
            plain.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in plain.execute_command("CLUSTER", "INFO"):
                time.sleep(0.02)
        yield server


@pytest.fixture(params=["redis_server", "cluster"])
def run_scenario(request: pytest.FixtureRequest) -> RunScenario:
    url = request.getfixturevalue(request.param).url
    with library.Redis.from_url(url) as plain:
        plain.flushall()

    def run(steps: Callable[[QueueScenario], Awaitable[None]]) -> None:
        async def run_steps() -> None:
            scenario = QueueScenario(url)
            await scenario.jobs.create_groups()
            try:
                await steps(scenario)
            finally:
                await scenario.redis.aclose()

        asyncio.run(run_steps())

    return run


def test_request_and_transcript_are_stored_exactly(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        assert await scenario.submit(callback=CALLBACK) == "new"
        job = await scenario.start(scenario.one)
        assert job.request.options == TranscribeOptions(language="de", temperature=(0.0, 0.5))
        assert (job.audio, job.request.callback, job.attempts, job.crashes) == (b"\0\xff", CALLBACK, 1, 0)
        assert (await scenario.record()).state == "running"
        assert await scenario.one.succeed(job, TRANSCRIPT) == "stored"
        stored = await scenario.jobs.result("job")
        assert stored is not None
        assert transcript_from_json(stored) == TRANSCRIPT
        record = await scenario.record()
        assert (record.state, record.duration_s, record.worker, record.error) == ("succeeded", 2.5, "one", None)
        assert await scenario.n_entries() == 0
        assert await scenario.redis.hexists(scenario.keys.job("job"), "audio") == 0
        [webhook] = await scenario.one.lease_webhooks(10, 60.0)
        await scenario.one.record_webhook(webhook, DELIVERED)
        assert 3590 < await scenario.redis.ttl(scenario.keys.job("job")) <= 3600
        assert 3590 < await scenario.redis.ttl(scenario.keys.result("job")) <= 3600

    run_scenario(steps)


def test_an_id_is_submitted_once_and_a_full_queue_refuses(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        assert [await scenario.submit(name) for name in ("a", "a", "b", "c", "d")] == [
            "new",
            "known",
            "new",
            "new",
            "full",
        ]
        assert await scenario.n_entries() == 3
        assert await scenario.submit("e", "batch") == "new"  # a queue of its own

    run_scenario(steps)


def test_a_job_is_claimed_once_and_dead_after_the_second_crash(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        await scenario.start(scenario.one)
        assert await scenario.two.claim("interactive", 1, 30.0) == []  # not idle for so long
        job = await scenario.start(scenario.two)
        assert (job.attempts, job.crashes) == (2, 1)
        assert await scenario.start_any(scenario.one) == "dead"
        record = await scenario.record()
        assert (record.state, record.error_kind, record.crashes) == ("dead", "WorkerCrashed", 2)
        assert "2 times (last two)" in str(record.error)
        assert [dead.id for dead in await scenario.jobs.newest(10, only_dead=True)] == ["job"]
        assert await scenario.n_entries() == 0

    run_scenario(steps)


def test_a_late_result_schedules_no_second_webhook(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit(callback=CALLBACK)
        slow = await scenario.start(scenario.one)
        quick = await scenario.start(scenario.two)
        assert await scenario.one.heartbeat(STATUS, [slow]) == {"job": "lease_lost"}
        assert await scenario.one.fail(slow, "failed", NotAudio("late")) == "rejected"
        assert await scenario.two.succeed(quick, TRANSCRIPT) == "stored"
        [webhook] = await scenario.one.lease_webhooks(10, 0.0)
        await scenario.one.record_webhook(webhook, DELIVERED)
        assert await scenario.one.succeed(slow, TRANSCRIPT) == "duplicate"
        assert await scenario.one.lease_webhooks(10, 0.0) == []
        assert (await scenario.record()).webhook == "delivered"

    run_scenario(steps)


def test_a_worker_that_lost_its_lease_may_still_store_the_first_result(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        slow = await scenario.start(scenario.one)
        other = await scenario.start(scenario.two)
        assert await scenario.one.succeed(slow, TRANSCRIPT) == "stored"
        assert await scenario.two.heartbeat(STATUS, [other]) == {"job": "lease_lost"}
        assert await scenario.n_entries() == 0

    run_scenario(steps)


def test_a_heartbeat_renews_the_lease_and_counts_no_delivery(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        job = await scenario.start(scenario.one)
        await asyncio.sleep(0.15)
        job.phase, job.done_s, job.duration_s = "engine", 1.5, 3.0
        assert await scenario.one.heartbeat(STATUS, [job]) == {}
        assert await scenario.two.claim("interactive", 1, 0.1) == []
        [pending] = await scenario.redis.xpending_range(scenario.keys.queue("interactive"), GROUP, "-", "+", 10)
        assert (pending["consumer"], pending["times_delivered"]) == (b"one", 1)
        record = await scenario.record()
        assert (record.phase, record.done_s, record.duration_s) == ("engine", 1.5, 3.0)
        assert [status.name for status in await scenario.jobs.workers()] == ["one"]

    run_scenario(steps)


def test_a_failed_job_waits_for_its_retry(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        job = await scenario.start(scenario.one)
        assert await scenario.one.fail(job, "waiting", FetchFailed("no answer"), 0.1) == "stored"
        assert await scenario.one.promote_delayed() == 0
        record = await scenario.record()
        assert (record.state, record.error, record.error_kind) == ("waiting", "no answer", "FetchFailed")
        await asyncio.sleep(0.15)
        assert await scenario.one.promote_delayed() == 1
        assert (await scenario.start(scenario.two)).attempts == 2

    run_scenario(steps)


def test_a_requeued_job_counts_no_attempt(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        job = await scenario.start(scenario.one)
        assert await scenario.one.requeue(job.id, job.entry_id) == "stored"
        assert await scenario.one.requeue(job.id, job.entry_id) == "rejected"
        job = await scenario.start(scenario.two)
        assert (job.attempts, job.crashes) == (1, 0)

    run_scenario(steps)


@pytest.mark.parametrize("state", ["queued", "waiting", "running"])
def test_cancel_in_every_state(run_scenario: RunScenario, state: str) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit(callback=CALLBACK)
        job = await scenario.start(scenario.one) if state != "queued" else None
        if job is not None and state == "waiting":
            await scenario.one.fail(job, "waiting", FetchFailed("no answer"), 60.0)
        assert await scenario.jobs.cancel("job") == ("running" if state == "running" else "cancelled")
        if job is not None and state == "running":
            assert await scenario.one.heartbeat(STATUS, [job]) == {"job": "cancel"}
            assert await scenario.one.fail(job, "cancelled", None) == "stored"
        assert (await scenario.record()).state == "cancelled"
        assert await scenario.n_entries() == 0
        assert len(await scenario.one.lease_webhooks(10, 1.0)) == 1
        assert await scenario.jobs.cancel("job") == "cancelled"
        assert await scenario.jobs.cancel("other") is None

    run_scenario(steps)


def test_a_cancelled_job_of_a_dead_worker_ends(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        await scenario.start(scenario.one)
        await scenario.jobs.cancel("job")
        assert await scenario.start_any(scenario.two) == "cancelled"

    run_scenario(steps)


def test_a_retried_job_sends_another_webhook(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit(callback=CALLBACK)
        job = await scenario.start(scenario.one)
        assert await scenario.jobs.retry("job") == "running"
        await scenario.one.fail(job, "dead", FetchFailed("no answer"))
        assert [webhook.round for webhook in await scenario.one.lease_webhooks(10, 1.0)] == ["1"]
        assert await scenario.jobs.retry("job") == "dead"
        assert await scenario.jobs.newest(10, only_dead=True) == []
        assert await scenario.redis.ttl(scenario.keys.job("job")) == -1
        job = await scenario.start(scenario.one)
        assert (job.attempts, job.audio) == (1, b"\0\xff")
        await scenario.one.succeed(job, TRANSCRIPT)
        assert [webhook.round for webhook in await scenario.one.lease_webhooks(10, 1.0)] == ["2"]
        assert await scenario.jobs.retry("job") == "succeeded"

    run_scenario(steps)


def test_a_webhook_is_due_again_after_its_lease(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit(callback=CALLBACK)
        await scenario.one.succeed(await scenario.start(scenario.one), TRANSCRIPT)
        assert len(await scenario.one.lease_webhooks(10, 0.1)) == 1
        assert await scenario.two.lease_webhooks(10, 0.1) == []
        await asyncio.sleep(0.15)
        [webhook] = await scenario.two.lease_webhooks(10, 60.0)
        assert webhook.job_id == "job"
        await scenario.two.record_webhook(webhook, Delivery((WebhookAttempt(1.0, 503, "busy"),), "pending", 0.0))
        [webhook] = await scenario.one.lease_webhooks(10, 60.0)
        attempts = (WebhookAttempt(1.0, 503, "busy"), WebhookAttempt(2.0, 410, "gone"))
        await scenario.one.record_webhook(webhook, Delivery(attempts, "failed", 0.0))
        record = await scenario.record()
        assert (record.webhook, record.webhook_attempts) == ("failed", attempts)
        assert (await scenario.jobs.counts()).is_all_done

    run_scenario(steps)


def test_a_lost_queue_is_rebuilt_with_its_jobs(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        for job_id in ("a", "b"):
            await scenario.submit(job_id)
        active = await scenario.start(scenario.one)
        await scenario.redis.delete(scenario.keys.queue("interactive"))
        with pytest.raises(library.ResponseError, match="NOGROUP"):
            await scenario.one.read(PRIORITIES, 1)
        assert await scenario.one.rebuild() == 2
        assert await scenario.one.rebuild() == 0
        assert {(await scenario.start(scenario.two)).id for _ in range(2)} == {"a", "b"}
        assert await scenario.one.heartbeat(STATUS, [active]) == {"a": "lease_lost"}

    run_scenario(steps)


def test_expired_jobs_are_removed_from_every_list(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit("old", keep_s=60)
        await scenario.one.fail(await scenario.start(scenario.one), "dead", FetchFailed("no answer"))
        assert len(await scenario.jobs.newest(10)) == 1
        await scenario.redis.zadd(scenario.keys.single("expiries"), {"old": 1.0})
        await scenario.redis.delete(scenario.keys.job("old"))
        await scenario.one.promote_delayed()
        for name in ("index", "dead", "expiries"):
            assert await scenario.redis.zcard(scenario.keys.single(name)) == 0

    run_scenario(steps)


def test_a_stale_entry_is_dropped(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        entry = await scenario.redis.xadd(scenario.keys.queue("interactive"), {"id": "job"})
        assert await scenario.one.start(StreamEntry("interactive", entry.decode(), "job"), 2) == "stale"
        assert await scenario.n_entries() == 1
        await scenario.redis.xadd(scenario.keys.queue("batch"), {"id": "unknown"})
        [stray] = await scenario.one.read(["batch"], 1)
        assert await scenario.one.start(stray, 2) == "stale"
        assert (await scenario.start(scenario.one)).id == "job"

    run_scenario(steps)


def test_idle_consumers_with_jobs_are_kept(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        await scenario.two.read(PRIORITIES, 1)
        await scenario.one.read(PRIORITIES, 1)
        await asyncio.sleep(0.02)
        await scenario.jobs.run(REMOVE_IDLE_CONSUMERS, 10)
        consumers = await scenario.redis.xinfo_consumers(scenario.keys.queue("interactive"), GROUP)
        assert [consumer["name"] for consumer in consumers] == [b"two"]

    run_scenario(steps)


@pytest.mark.parametrize("kind", ["inline", "blob"])
@pytest.mark.parametrize("end", ["failed", "cancelled", "cancelled-running", "dead"])
def test_audio_is_deleted_when_a_job_ends_unless_it_is_dead(run_scenario: RunScenario, kind: str, end: str) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await (scenario.submit() if kind == "inline" else scenario.submit_blob())
        if end == "cancelled":
            await scenario.jobs.cancel("job")
        else:
            job = await scenario.start(scenario.one)
            await scenario.one.fail(job, end.partition("-")[0], NotAudio("no"))
        has_inline = await scenario.redis.hexists(scenario.keys.job("job"), "audio")
        blob_ttl_s = await scenario.redis.ttl(scenario.keys.blob("blob"))
        if end == "dead":
            assert (has_inline, 86_390 < blob_ttl_s <= 86_400) == (kind == "inline", kind == "blob")
            assert await scenario.jobs.retry("job") == "dead"
        else:
            assert (has_inline, blob_ttl_s) == (0, -2)
            assert await scenario.jobs.retry("job") == "no_audio"
            assert (await scenario.record()).state == end.partition("-")[0]

    run_scenario(steps)


def test_a_blob_that_no_job_refers_to_expires_soon(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit_blob("a")
        assert await scenario.redis.ttl(scenario.keys.blob("blob")) > 6 * 86_400
        await scenario.jobs.delete_blob("blob")
        assert await scenario.submit("b", audio=AudioRef("blob", "blob", "talk.mp3")) == "expired"
        assert (await scenario.jobs.records(["b"])) == [None]
        await scenario.jobs.run(WRITE_BLOB, "orphan", 0, b"RIFF", 4, UPLOAD_KEEP_S)
        assert 0 < await scenario.redis.ttl(scenario.keys.blob("orphan")) <= UPLOAD_KEEP_S

    run_scenario(steps)


def test_a_pending_webhook_keeps_the_record_and_the_result(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit(callback=CALLBACK, keep_s=60)
        await scenario.one.succeed(await scenario.start(scenario.one), TRANSCRIPT)
        kept = (scenario.keys.job("job"), scenario.keys.result("job"))
        assert all([await scenario.redis.ttl(key) > 80_000 for key in kept])
        for delivery in (Delivery((), "pending", 0.0), Delivery((), "pending", 3600.0)):
            [webhook] = await scenario.one.lease_webhooks(10, 0.0)
            await scenario.one.record_webhook(webhook, delivery)
        assert all([await scenario.redis.ttl(key) > 80_000 for key in kept])
        await scenario.one.record_webhook(webhook, DELIVERED)
        assert all([0 < await scenario.redis.ttl(key) <= 60 for key in kept])
        assert 0 < await scenario.redis.zscore(scenario.keys.single("expiries"), "job") - time.time() < 70

    run_scenario(steps)


def test_a_job_that_kills_the_engine_is_dead_after_the_second_time(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        job = await scenario.start(scenario.one)
        assert await scenario.one.requeue(job.id, job.entry_id, max_crashes=2) == "stored"
        record = await scenario.record()
        assert (record.state, record.attempts, record.crashes) == ("queued", 1, 1)
        job = await scenario.start(scenario.two)
        assert (job.attempts, job.crashes) == (2, 1)
        assert await scenario.two.requeue(job.id, job.entry_id, max_crashes=2) == "dead"
        record = await scenario.record()
        assert (record.state, record.error_kind, record.crashes) == ("dead", "WorkerCrashed", 2)
        assert await scenario.n_entries() == 0

    run_scenario(steps)


def test_a_deferred_job_waits_longer_each_time_and_counts_no_attempt(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        for first_s, expected_s in ((0.01, 0.01), (0.02, 0.04), (1000.0, 60.0)):
            job = await scenario.start(scenario.one)
            assert await scenario.one.defer(job.id, first_s, 60.0) == "stored"
            record = await scenario.record()
            assert (record.state, record.attempts) == ("waiting", 0)
            assert record.due_at is not None
            assert record.due_at - time.time() == pytest.approx(expected_s, abs=0.5)
            await asyncio.sleep(0.06)
            assert await scenario.one.promote_delayed() == (expected_s < 1)
        assert await scenario.one.defer("job", 1.0, 60.0) == "rejected"

    run_scenario(steps)


def test_a_full_redis_refuses_submits_and_lets_workers_end_jobs(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        for job_id in ("a", "b", "c"):
            await scenario.submit(job_id, callback=CALLBACK)
        used_bytes = (await scenario.redis.info("memory"))["used_memory"]
        try:
            await scenario.redis.config_set("maxmemory", int(used_bytes / 0.92))
            with pytest.raises(library.exceptions.OutOfMemoryError, match="90% of maxmemory"):
                await scenario.submit("d", "batch")
            await scenario.redis.config_set("maxmemory", 1)
            with pytest.raises(library.exceptions.OutOfMemoryError):
                await scenario.submit_blob("e")
            await scenario.jobs.create_groups()
            job, failing = await scenario.start(scenario.one), await scenario.start(scenario.one)
            assert await scenario.one.heartbeat(STATUS, [job, failing]) == {}
            assert await scenario.one.succeed(job, TRANSCRIPT) == "stored"
            assert await scenario.one.fail(failing, "waiting", FetchFailed("no answer"), 0.0) == "stored"
            assert await scenario.one.promote_delayed() == 1
            assert await scenario.jobs.cancel("c") == "cancelled"
            first, second = await scenario.one.lease_webhooks(10, 60.0)
            await scenario.one.postpone_webhooks([first], 0.0)
            assert await scenario.one.record_webhook(second, DELIVERED) == "stored"
            job = await scenario.start(scenario.one)
            assert await scenario.one.requeue(job.id, job.entry_id) == "stored"
        finally:
            await scenario.redis.config_set("maxmemory", 0)

    run_scenario(steps)


@pytest.mark.parametrize(
    "damage",
    [
        {"request": "{"},
        {"request": '{"v": 1}'},
        {"request": '{"v": 99}'},
        {"attempts": "many"},
        {"queued_at": "never"},
        {"keep_s": "long", "request": "[]"},
        None,
    ],
)
def test_a_damaged_record_is_rejected_once(run_scenario: RunScenario, damage: dict[str, str] | None) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        key = scenario.keys.job("job")
        if damage is None:
            await scenario.redis.delete(key)
            await scenario.redis.set(key, "not a hash")
        else:
            await scenario.redis.hset(key, mapping=damage)
        [entry] = await scenario.one.read(PRIORITIES, 1)
        with pytest.raises(UsageError) as caught:
            await scenario.one.start(entry, 2)
        await scenario.one.reject(entry, caught.value)
        assert await scenario.n_entries() == 0
        assert (await scenario.jobs.counts()).is_all_done
        if damage is not None:
            assert await scenario.redis.hget(key, "state") == b"failed"
            assert await scenario.redis.ttl(key) > 0
        await scenario.submit("good")
        assert [record.id for record in await scenario.jobs.newest(10) if record.id != "job"] == ["good"]

    run_scenario(steps)


def test_entries_that_are_not_jobs_are_dropped(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.redis.xadd(scenario.keys.queue("interactive"), {"other": b"\xff"})
        await scenario.redis.xadd(scenario.keys.queue("interactive"), {"id": b"\xff"})
        assert [await scenario.start_any(scenario.one) for _ in range(2)] == ["stale"] * 2
        assert await scenario.n_entries() == 0

    run_scenario(steps)
