"""Webhooks in a real Redis: scheduled once per end of a job, leased, retried, and kept until they are delivered."""

from __future__ import annotations

import asyncio
import time

from choral.errors import FetchFailed, NotAudio
from choral.jobs.queue_store import Delivery
from choral.jobs.record import WebhookAttempt
from queue_scenario import CALLBACK, DELIVERED, STATUS, TRANSCRIPT, QueueScenario, RunScenario


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
