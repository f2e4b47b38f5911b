"""Order in a real Redis: lost streams, expiry, full memory, damaged records, and audio that is deleted."""

from __future__ import annotations

import asyncio

import pytest
import redis as library

from choral.errors import FetchFailed, NotAudio, UsageError
from choral.jobs.job_queue import PRIORITIES, UPLOAD_KEEP_S
from choral.jobs.redis_connection import is_damaged_record
from choral.jobs.redis_keys import GROUP
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.scripts import REMOVE_IDLE_CONSUMERS, WRITE_BLOB
from choral.jobs.worker_queue import StreamEntry
from choral.options import TranscribeOptions
from queue_scenario import CALLBACK, DELIVERED, INLINE, STATUS, TRANSCRIPT, QueueScenario, RunScenario


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
            [webhook] = await scenario.one.lease_webhooks(10, 60.0, lambda webhook: webhook.job_id == "c")
            assert await scenario.one.record_webhook(webhook, DELIVERED) == "stored"
            job = await scenario.start(scenario.one)
            assert await scenario.one.requeue(job) == "stored"
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
        {"crashes": "few"},
        {"request": JobRequest(id="other", audio=INLINE, options=TranscribeOptions()).to_json()},
        {"queued_at": "never"},
        {"keep_s": "long", "request": "[]"},
        {"keep_s": "6" * 60, "request": b"\xff"},
        None,
    ],
)
def test_a_damaged_record_is_rejected_once(run_scenario: RunScenario, damage: dict[str, str | bytes] | None) -> None:
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


def test_errors_of_the_server_are_not_taken_for_damage() -> None:
    """Those are retried until the server recovers."""
    in_script = "script: 45a6bfd, on @user_script:1."
    for error in (
        library.ReadOnlyError(f"You can't write against a read only replica. {in_script}"),
        library.exceptions.OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {in_script}"),
        library.ResponseError(f"MISCONF Redis is configured to save RDB snapshots. {in_script}"),
        library.ResponseError(f"NOGROUP No such key or consumer group. {in_script}"),
        library.ConnectionError("Connection closed by server."),
    ):
        assert not is_damaged_record(error), error
    for text in (
        "hash value is not an integer",
        "user_script:9: attempt to concatenate a nil value",
        "WRONGTYPE Operation",
    ):
        assert is_damaged_record(library.ResponseError(f"{text} {in_script}")), text
