"""Both stores of jobs, Redis and SQLite, keep the same promises; and the retry policy that they share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from choral.errors import EngineError, FetchFailed, NotAudio
from choral.jobs.active_job import ActiveJob
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_states import CRASH_KIND, MAX_RETRY_S, RetryPolicy
from choral.jobs.queue_store import Delivery, DueWebhook, QueueStore
from choral.jobs.record import JobRecord, WebhookAttempt, transcript_from_json
from choral.jobs.request import AudioRef, JobRequest
from choral.options import TranscribeOptions
from choral.server.jobs.job_table import JobTable
from choral.server.jobs.local_queue import LocalQueue
from queue_scenario import CALLBACK, TRANSCRIPT, QueueScenario

REQUEST = JobRequest(
    id="job", audio=AudioRef("path", "/talk.mp3", "talk.mp3"), options=TranscribeOptions(), callback=CALLBACK, keep_s=60
)
BUSY = Delivery((WebhookAttempt(1.0, 503, "busy"),), "pending", 0.0)
DONE = Delivery((*BUSY.attempts, WebhookAttempt(2.0, 200, None)), "delivered", 0.0)


class StoreScenario:
    """A store with one job, and how its own side is asked for what the shared interface has not."""

    def __init__(
        self,
        store: QueueStore,
        start: Callable[[], Awaitable[ActiveJob | None]],
        show: Callable[[], Awaitable[JobRecord]],
        kept_s: Callable[[], Awaitable[float]],
    ) -> None:
        self.store, self._start, self.show, self.kept_s = store, start, show, kept_s

    async def start(self) -> ActiveJob:
        job = await self._start()
        assert job is not None
        return job

    async def webhooks(self, *, may_send: bool = True) -> list[DueWebhook]:
        return list(await self.store.lease_webhooks(5, 60.0, lambda webhook: may_send))


@asynccontextmanager
async def redis_scenario(url: str, folder: Path) -> AsyncIterator[StoreScenario]:
    scenario = QueueScenario(url)
    async with scenario.redis:
        await scenario.jobs.create_groups()
        assert await scenario.jobs.submit(REQUEST, b"", 10) == "new"

        async def start() -> ActiveJob | None:
            await scenario.one.promote_delayed()
            entries = await scenario.one.read(["interactive"], 1)
            return await scenario.start_entry(scenario.one, entries[0]) if entries else None

        async def kept_s() -> float:
            return float(await scenario.redis.ttl(scenario.keys.job("job")))

        yield StoreScenario(scenario.one, start, scenario.record, kept_s)


@asynccontextmanager
async def sqlite_scenario(url: str, folder: Path) -> AsyncIterator[StoreScenario]:
    queue = LocalQueue(folder)
    await queue.run(lambda table: table.insert(REQUEST, 10))

    def kept_s(table: JobTable) -> float:
        [row] = table._file.read("SELECT expires_at - ended_at FROM jobs")
        return float(row[0])

    yield StoreScenario(
        queue,
        lambda: queue.take(FetchSlots(1, 1), batch_first=False),
        lambda: queue.run(lambda table: table.show("job")),
        lambda: queue.run(kept_s),
    )
    await queue.close()


Steps = Callable[[StoreScenario], Awaitable[None]]


@pytest.fixture(params=[redis_scenario, sqlite_scenario], ids=["redis", "sqlite"])
def on_store(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Callable[[Steps], None]:
    async def run(steps: Steps) -> None:
        async with request.param(redis_url, tmp_path) as scenario:
            await steps(scenario)

    return lambda steps: asyncio.run(run(steps))


def test_a_failed_attempt_waits_and_a_success_clears_its_error(on_store: Callable[[Steps], None]) -> None:
    async def steps(scenario: StoreScenario) -> None:
        job = await scenario.start()
        assert await scenario.store.fail(job, "waiting", FetchFailed("no answer \ud800"), 1.0) == "stored"
        record = await scenario.show()
        assert (record.state, record.error, record.error_kind) == ("waiting", "no answer ?", "FetchFailed")
        assert await scenario._start() is None
        await asyncio.sleep(1.05)
        job = await scenario.start()
        job.fetch_s, job.decode_s = 0.5, 0.25
        assert (job.attempts, job.crashes) == (2, 0)
        assert await scenario.store.ended_job("job") is None
        assert await scenario.store.succeed(job, TRANSCRIPT) == "stored"
        ended = await scenario.store.ended_job("job")
        assert ended is not None
        record, result = ended
        assert (record.state, record.error, record.duration_s) == ("succeeded", None, TRANSCRIPT.duration)
        assert (record.timings.fetch_s, record.timings.decode_s, record.webhook) == (0.5, 0.25, "pending")
        assert transcript_from_json(result or b"") == TRANSCRIPT

    on_store(steps)


def test_a_job_that_is_put_back_counts_crashes_only(on_store: Callable[[Steps], None]) -> None:
    async def steps(scenario: StoreScenario) -> None:
        assert await scenario.store.requeue(await scenario.start()) == "stored"
        job = await scenario.start()
        assert (job.attempts, job.crashes) == (1, 0)
        assert await scenario.store.requeue(job, max_crashes=2) == "stored"
        job = await scenario.start()
        assert (job.attempts, job.crashes) == (2, 1)
        assert await scenario.store.requeue(job, max_crashes=2) == "dead"
        record = await scenario.show()
        assert (record.state, record.crashes, record.error_kind) == ("dead", 2, CRASH_KIND)
        assert await scenario._start() is None
        assert [webhook.callback for webhook in await scenario.webhooks()] == [CALLBACK]

    on_store(steps)


@pytest.mark.parametrize("state", ["failed", "dead", "cancelled"])
def test_a_pending_webhook_is_leased_once_and_keeps_the_job(on_store: Callable[[Steps], None], state: str) -> None:
    async def steps(scenario: StoreScenario) -> None:
        error = None if state == "cancelled" else NotAudio("no audio")
        assert await scenario.store.fail(await scenario.start(), state, error) == "stored"  # type: ignore[arg-type]
        assert (await scenario.show()).state == state
        assert await scenario.kept_s() > 80_000
        [webhook] = await scenario.webhooks()
        assert await scenario.webhooks() == []  # it is being sent
        assert await scenario.store.record_webhook(webhook, BUSY) == "stored"
        assert await scenario.kept_s() > 80_000
        [webhook] = await scenario.webhooks()
        assert await scenario.store.record_webhook(webhook, DONE) == "stored"
        record = await scenario.show()
        assert (record.webhook, record.webhook_attempts) == ("delivered", DONE.attempts)
        assert 0 < await scenario.kept_s() <= 60
        assert await scenario.webhooks() == []

    on_store(steps)


def test_a_webhook_that_may_not_be_sent_stays_due(
    on_store: Callable[[Steps], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("choral.jobs.worker_queue.POSTPONE_S", 0.0)

    async def steps(scenario: StoreScenario) -> None:
        await scenario.store.fail(await scenario.start(), "failed", NotAudio("no audio"))
        assert await scenario.webhooks(may_send=False) == []
        assert len(await scenario.webhooks()) == 1

    on_store(steps)


def test_the_retry_policy_counts_crashes_apart_from_failures() -> None:
    policy = RetryPolicy(max_attempts=3, max_crashes=2, retry_s=100.0)
    assert policy.after_failure(NotAudio("no audio"), 1, 0) == ("failed", 0.0)
    assert policy.after_failure(EngineError("broken"), 3, 0) == ("dead", 0.0)
    state, pause_s = policy.after_failure(EngineError("broken"), 3, 1)
    assert (state, pause_s) == ("waiting", pytest.approx(200.0, rel=0.2))
    for retry_s, expected_s in ((500.0, MAX_RETRY_S), (3600.0, 3600.0)):  # a longer first pause is what was asked for
        _, pause_s = dataclasses.replace(policy, retry_s=retry_s).after_failure(FetchFailed("no answer"), 2, 0)
        assert pause_s == pytest.approx(expected_s, rel=0.2)
