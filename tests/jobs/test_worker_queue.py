"""Every transition of a job, on a real Redis: what is stored, what is acknowledged, what is told once.

All of them also run on a Redis in cluster mode, which refuses scripts whose keys do not belong together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
import redis as library

from choral.errors import FetchFailed, NotAudio
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import PRIORITIES, JobQueue
from choral.jobs.record import JobRecord, WebhookAttempt, WorkerStatus, transcript_from_json
from choral.jobs.redis_connection import connect
from choral.jobs.redis_keys import GROUP, RedisKeys
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.scripts import SWEEP
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


class Scene:
    """A producer and two workers."""

    def __init__(self, url: str) -> None:
        self.redis = connect(url)
        self.keys = RedisKeys()
        self.store = JobQueue(self.redis, self.keys)
        self.one, self.two = WorkerQueue(self.store, "one"), WorkerQueue(self.store, "two")

    async def submit(
        self, job_id: str = "job", priority: Priority = "interactive", callback: str | None = None, keep_s: int = 3600
    ) -> str:
        audio = AudioRef("inline", "", "talk.mp3")
        options = TranscribeOptions(language="de", temperature=(0.0, 0.5))
        request = JobRequest(
            id=job_id, audio=audio, options=options, priority=priority, callback=callback, keep_s=keep_s
        )
        return await self.store.submit(request, b"\0\xff", 3)

    async def begin(self, ledger: WorkerQueue) -> ActiveJob:
        began = await self.begin_any(ledger)
        assert isinstance(began, ActiveJob), began
        return began

    async def begin_any(self, ledger: WorkerQueue) -> ActiveJob | str:
        """A waiting job, or one that another worker has."""
        entries = await ledger.read(PRIORITIES, 1) or await ledger.claim(1, 0.0)
        return await ledger.begin(entries[0], 2)

    async def record(self, job_id: str = "job") -> JobRecord:
        found = (await self.store.records([job_id]))[0]
        assert found is not None
        return found

    async def n_entries(self) -> int:
        return sum([await self.redis.xlen(self.keys.queue(priority)) for priority in PRIORITIES])


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]


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
def play(request: pytest.FixtureRequest) -> Play:
    url = request.getfixturevalue(request.param).url
    with library.Redis.from_url(url) as plain:
        plain.flushall()

    def run(acts: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            scene = Scene(url)
            await scene.store.create_groups()
            try:
                await acts(scene)
            finally:
                await scene.redis.aclose()

        asyncio.run(whole())

    return run


def test_a_job_comes_back_as_it_was_sent_and_its_transcript_too(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        assert await scene.submit(callback=CALLBACK) == "new"
        job = await scene.begin(scene.one)
        assert job.request.options == TranscribeOptions(language="de", temperature=(0.0, 0.5))
        assert (job.audio, job.request.callback, job.attempts, job.crashes) == (b"\0\xff", CALLBACK, 1, 0)
        assert (await scene.record()).state == "running"
        assert await scene.one.succeed(job, TRANSCRIPT) == "stored"
        stored = await scene.store.result("job")
        assert stored is not None
        assert transcript_from_json(stored) == TRANSCRIPT
        record = await scene.record()
        assert (record.state, record.duration_s, record.worker, record.error) == ("succeeded", 2.5, "one", None)
        assert await scene.n_entries() == 0
        assert await scene.redis.hexists(scene.keys.job("job"), "audio") == 0
        assert 3590 < await scene.redis.ttl(scene.keys.job("job")) <= 3600
        assert 3590 < await scene.redis.ttl(scene.keys.result("job")) <= 3600

    play(acts)


def test_the_same_id_is_submitted_once_and_a_full_queue_refuses(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        assert [await scene.submit(name) for name in ("a", "a", "b", "c", "d")] == [
            "new",
            "known",
            "new",
            "new",
            "full",
        ]
        assert await scene.n_entries() == 3
        assert await scene.submit("e", "batch") == "new"  # a queue of its own

    play(acts)


def test_a_dead_workers_job_is_claimed_and_dead_after_the_second(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        await scene.begin(scene.one)
        assert await scene.two.claim(1, 30.0) == []  # not idle for so long
        job = await scene.begin(scene.two)
        assert (job.attempts, job.crashes) == (2, 1)
        assert await scene.begin_any(scene.one) == "dead"
        record = await scene.record()
        assert (record.state, record.error_kind, record.crashes) == ("dead", "WorkerCrashed", 2)
        assert "2 times (last two)" in str(record.error)
        assert [dead.id for dead in await scene.store.newest(10, only_dead=True)] == ["job"]
        assert await scene.n_entries() == 0

    play(acts)


def test_a_late_result_overwrites_the_same_and_tells_nobody_twice(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit(callback=CALLBACK)
        slow = await scene.begin(scene.one)
        quick = await scene.begin(scene.two)
        assert await scene.one.beat(STATUS, [slow]) == {"job": "lost"}
        assert await scene.one.fail(slow, "failed", NotAudio("late")) == "late"
        assert await scene.two.succeed(quick, TRANSCRIPT) == "stored"
        [webhook] = await scene.one.take_webhooks(10, 0.0)
        await scene.one.webhook_told(webhook, [WebhookAttempt(1.0, 200, None)], "delivered", 0.0)
        assert await scene.one.succeed(slow, TRANSCRIPT) == "again"
        assert await scene.one.take_webhooks(10, 0.0) == []
        assert (await scene.record()).webhook == "delivered"

    play(acts)


def test_a_first_result_counts_whoever_brings_it(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        slow = await scene.begin(scene.one)
        other = await scene.begin(scene.two)
        assert await scene.one.succeed(slow, TRANSCRIPT) == "stored"
        assert await scene.two.beat(STATUS, [other]) == {"job": "lost"}
        assert await scene.n_entries() == 0

    play(acts)


def test_a_beat_keeps_a_job_and_counts_no_delivery(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        job = await scene.begin(scene.one)
        await asyncio.sleep(0.15)
        job.phase, job.done_s, job.duration_s = "engine", 1.5, 3.0
        assert await scene.one.beat(STATUS, [job]) == {}
        assert await scene.two.claim(1, 0.1) == []
        [pending] = await scene.redis.xpending_range(scene.keys.queue("interactive"), GROUP, "-", "+", 10)
        assert (pending["consumer"], pending["times_delivered"]) == (b"one", 1)
        record = await scene.record()
        assert (record.phase, record.done_s, record.duration_s) == ("engine", 1.5, 3.0)
        assert [status.name for status in await scene.store.workers()] == ["one"]

    play(acts)


def test_a_failure_waits_for_its_next_try(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        job = await scene.begin(scene.one)
        assert await scene.one.fail(job, "waiting", FetchFailed("no answer"), 0.1) == "stored"
        assert await scene.one.promote() == 0
        record = await scene.record()
        assert (record.state, record.error, record.error_kind) == ("waiting", "no answer", "FetchFailed")
        await asyncio.sleep(0.15)
        assert await scene.one.promote() == 1
        assert (await scene.begin(scene.two)).attempts == 2

    play(acts)


def test_what_is_handed_back_counts_no_attempt(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        job = await scene.begin(scene.one)
        assert await scene.one.hand_back(job) == "stored"
        assert await scene.one.hand_back(job) == "late"
        job = await scene.begin(scene.two)
        assert (job.attempts, job.crashes) == (1, 0)

    play(acts)


@pytest.mark.parametrize("state", ["queued", "waiting", "running"])
def test_cancel_wherever_the_job_is(play: Play, state: str) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit(callback=CALLBACK)
        job = await scene.begin(scene.one) if state != "queued" else None
        if job is not None and state == "waiting":
            await scene.one.fail(job, "waiting", FetchFailed("no answer"), 60.0)
        assert await scene.store.cancel("job") == ("running" if state == "running" else "cancelled")
        if job is not None and state == "running":
            assert await scene.one.beat(STATUS, [job]) == {"job": "cancel"}
            assert await scene.one.fail(job, "cancelled", None) == "stored"
        assert (await scene.record()).state == "cancelled"
        assert await scene.n_entries() == 0
        assert len(await scene.one.take_webhooks(10, 1.0)) == 1
        assert await scene.store.cancel("job") == "cancelled"
        assert await scene.store.cancel("other") is None

    play(acts)


def test_a_cancelled_job_of_a_dead_worker_ends(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        await scene.begin(scene.one)
        await scene.store.cancel("job")
        assert await scene.begin_any(scene.two) == "cancelled"

    play(acts)


def test_retry_starts_anew_with_a_webhook_of_its_own(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit(callback=CALLBACK)
        job = await scene.begin(scene.one)
        assert await scene.store.retry("job") == "running"
        await scene.one.fail(job, "dead", FetchFailed("no answer"))
        assert [webhook.round for webhook in await scene.one.take_webhooks(10, 1.0)] == [1]
        assert await scene.store.retry("job") == "dead"
        assert await scene.store.newest(10, only_dead=True) == []
        assert await scene.redis.ttl(scene.keys.job("job")) == -1
        job = await scene.begin(scene.one)
        assert (job.attempts, job.audio) == (1, b"\0\xff")
        await scene.one.succeed(job, TRANSCRIPT)
        assert [webhook.round for webhook in await scene.one.take_webhooks(10, 1.0)] == [2]
        assert await scene.store.retry("job") == "succeeded"

    play(acts)


def test_a_webhook_whose_sender_died_is_due_again(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit(callback=CALLBACK)
        await scene.one.succeed(await scene.begin(scene.one), TRANSCRIPT)
        assert len(await scene.one.take_webhooks(10, 0.1)) == 1
        assert await scene.two.take_webhooks(10, 0.1) == []
        await asyncio.sleep(0.15)
        [webhook] = await scene.two.take_webhooks(10, 60.0)
        assert (webhook.job_id, webhook.callback) == ("job", CALLBACK)
        await scene.two.webhook_told(webhook, [WebhookAttempt(1.0, 503, "busy")], "pending", 0.0)
        [webhook] = await scene.one.take_webhooks(10, 60.0)
        attempts = [WebhookAttempt(1.0, 503, "busy"), WebhookAttempt(2.0, 410, "gone")]
        await scene.one.webhook_told(webhook, attempts, "failed", 0.0)
        record = await scene.record()
        assert (record.webhook, list(record.webhook_attempts)) == ("failed", attempts)
        assert (await scene.store.counts()).is_all_done

    play(acts)


def test_a_lost_queue_is_made_anew_with_its_jobs(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        for job_id in ("a", "b"):
            await scene.submit(job_id)
        held = await scene.begin(scene.one)
        await scene.redis.delete(scene.keys.queue("interactive"))
        with pytest.raises(library.ResponseError, match="NOGROUP"):
            await scene.one.read(PRIORITIES, 1)
        assert await scene.one.repair() == 2
        assert await scene.one.repair() == 0
        assert {(await scene.begin(scene.two)).id for _ in range(2)} == {"a", "b"}
        assert await scene.one.beat(STATUS, [held]) == {"a": "lost"}

    play(acts)


def test_what_has_run_out_leaves_every_list(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit("old", keep_s=60)
        await scene.one.fail(await scene.begin(scene.one), "dead", FetchFailed("no answer"))
        assert len(await scene.store.newest(10)) == 1
        await scene.redis.zadd(scene.keys.single("expiries"), {"old": 1.0})
        await scene.redis.delete(scene.keys.job("old"))
        await scene.one.promote()
        for name in ("index", "dead", "expiries"):
            assert await scene.redis.zcard(scene.keys.single(name)) == 0

    play(acts)


def test_an_entry_that_is_not_its_jobs_is_dropped(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        entry = await scene.redis.xadd(scene.keys.queue("interactive"), {"id": "job"})
        assert await scene.one.begin(StreamEntry("interactive", entry.decode(), "job"), 2) == "over"
        assert await scene.n_entries() == 1
        await scene.redis.xadd(scene.keys.queue("batch"), {"id": "nobody"})
        [stray] = await scene.one.read(["batch"], 1)
        assert await scene.one.begin(stray, 2) == "over"
        assert (await scene.begin(scene.one)).id == "job"

    play(acts)


def test_consumers_with_jobs_stay_in_the_group(play: Play) -> None:
    async def acts(scene: Scene) -> None:
        await scene.submit()
        await scene.two.read(PRIORITIES, 1)
        await scene.one.read(PRIORITIES, 1)
        await asyncio.sleep(0.02)
        await scene.store.run(SWEEP, 10)
        consumers = await scene.redis.xinfo_consumers(scene.keys.queue("interactive"), GROUP)
        assert [consumer["name"] for consumer in consumers] == [b"two"]

    play(acts)
