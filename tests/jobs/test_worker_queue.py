"""The transitions of a job on a real Redis: started, claimed, retried, put back, cancelled, ended."""

from __future__ import annotations

import asyncio
import time

import pytest

from choral.errors import FetchFailed
from choral.jobs.record import transcript_from_json
from choral.jobs.redis_keys import GROUP
from choral.options import TranscribeOptions
from queue_scenario import CALLBACK, DELIVERED, STATUS, TRANSCRIPT, QueueScenario, RunScenario


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
        assert await scenario.one.requeue(job) == "stored"
        assert await scenario.one.requeue(job) == "rejected"
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


def test_a_job_that_kills_the_engine_is_dead_after_the_second_time(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        await scenario.submit()
        job = await scenario.start(scenario.one)
        assert await scenario.one.requeue(job, max_crashes=2) == "stored"
        record = await scenario.record()
        assert (record.state, record.attempts, record.crashes) == ("queued", 1, 1)
        job = await scenario.start(scenario.two)
        assert (job.attempts, job.crashes) == (2, 1)
        assert await scenario.two.requeue(job, max_crashes=2) == "dead"
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


def test_what_is_due_moves_with_a_clock_that_is_set_back(run_scenario: RunScenario) -> None:
    async def steps(scenario: QueueScenario) -> None:
        for job_id in ("delayed", "ended"):
            await scenario.submit(job_id, callback=CALLBACK)
        await scenario.one.fail(await scenario.start(scenario.one), "waiting", FetchFailed("no answer"), 3600.0)
        await scenario.one.succeed(await scenario.start(scenario.one), TRANSCRIPT)
        await scenario.one.lease_webhooks(10, 3600.0)
        assert await scenario.one.promote_delayed() == 0
        await scenario.redis.incrbyfloat(scenario.keys.single("clock"), 3600)  # the time was an hour later
        assert await scenario.one.promote_delayed() == 1
        assert [webhook.job_id for webhook in await scenario.one.lease_webhooks(10, 60.0)] == ["ended"]
        assert await scenario.one.promote_delayed() == 0

    run_scenario(steps)
