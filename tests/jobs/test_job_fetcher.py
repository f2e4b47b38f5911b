"""The job fetcher on a real Redis: priorities, claims, and no received entry lost to an error."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from choral.jobs import WorkerSettings
from choral.jobs.active_job import ActiveJob
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_fetcher import JobFetcher
from choral.jobs.job_queue import JobQueue
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.redis_connection import RedisError, connect
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.worker_queue import WorkerQueue
from test_record import request_of


class FetchScenario:
    def __init__(self, jobs: JobQueue) -> None:
        self.jobs = jobs
        self.queue = WorkerQueue(jobs, "worker")
        self.retry = RedisRetry(self.queue, "redis")
        self.slots = FetchSlots(4, 2)
        self.fetcher = JobFetcher(
            self.queue, self.retry, WorkerSettings(claim_after_s=2.0), WorkerMetrics(), self.slots
        )

    async def fetch(self, n_max: int) -> list[str]:
        started: list[ActiveJob] = []
        await self.retry.call(lambda: self.fetcher.fetch(n_max, 0.01, started.append))
        return [job.id for job in started]


def run_scenario(redis_url: str, steps: Callable[[FetchScenario], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connect(redis_url) as redis:
            jobs = JobQueue(redis, RedisKeys())
            await jobs.create_groups()
            await steps(FetchScenario(jobs))

    asyncio.run(run())


def fail_once(monkeypatch: pytest.MonkeyPatch, queue: WorkerQueue, method: str, n_call: int) -> None:
    """Let the call with this number raise an error of Redis."""
    original, n_calls = getattr(queue, method), 0

    async def faulty(*arguments: object) -> object:
        nonlocal n_calls
        n_calls += 1
        if n_calls == n_call:
            raise RedisError("connection lost")
        return await original(*arguments)

    monkeypatch.setattr(queue, method, faulty)


@pytest.mark.parametrize("n_max", [1, 2, 5, 16])
def test_interactive_jobs_come_first_and_batch_jobs_get_a_share(redis_url: str, n_max: int) -> None:
    fetched: list[str] = []

    async def steps(scenario: FetchScenario) -> None:
        for i in range(60):
            await scenario.jobs.submit(request_of(f"batch-{i}", "batch"), b"x", 1000)
            await scenario.jobs.submit(request_of(f"interactive-{i}"), b"x", 1000)
        while len(fetched) < 60:
            fetched.extend(await scenario.fetch(n_max))

    run_scenario(redis_url, steps)
    n_first = 5 * max(1, n_max)
    n_batch = sum(job_id.startswith("batch") for job_id in fetched[:n_first])
    assert fetched[0].startswith("interactive")
    assert 0 < n_batch <= n_first / 4
    for priority in ("interactive", "batch"):  # each in the order of submission
        numbers = [int(job_id.partition("-")[2]) for job_id in fetched if job_id.startswith(priority)]
        assert numbers == sorted(numbers)


def test_nothing_is_claimed_soon_after_an_outage(redis_url: str) -> None:
    async def steps(scenario: FetchScenario) -> None:
        dead = WorkerQueue(scenario.jobs, "dead")
        await scenario.jobs.submit(request_of(), b"x", 10)
        [entry] = await dead.read(["interactive"], 1)
        await dead.start(entry, 2)
        await asyncio.sleep(2.1)
        scenario.retry._changed_s += 2.1  # as if Redis had just come back
        assert await scenario.fetch(1) == []
        scenario.retry._changed_s -= 2.1
        assert await scenario.fetch(1) == ["job"]

    run_scenario(redis_url, steps)


def test_entries_received_before_an_error_are_started(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(scenario: FetchScenario) -> None:
        await scenario.jobs.submit(request_of(), b"x", 10)
        await scenario.jobs.submit(request_of("batch", "batch"), b"x", 10)
        fail_once(monkeypatch, scenario.queue, "read", 2)  # the read of the batch queue, after the interactive one
        assert await scenario.fetch(4) == ["job"]
        assert await scenario.fetch(4) == ["batch"]

    run_scenario(redis_url, steps)


def test_entries_claimed_before_an_error_are_started(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(scenario: FetchScenario) -> None:
        dead = WorkerQueue(scenario.jobs, "dead")
        await scenario.jobs.submit(request_of(), b"x", 10)
        await dead.read(["interactive"], 1)
        await asyncio.sleep(2.1)
        fail_once(monkeypatch, scenario.queue, "claim", 2)
        assert await scenario.fetch(4) == ["job"]

    run_scenario(redis_url, steps)


@pytest.mark.parametrize("has_started", [False, True])
def test_entries_received_before_a_stop_are_put_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    async def steps(scenario: FetchScenario) -> None:
        start = scenario.queue.start

        async def never_respond(*arguments: object) -> None:
            if has_started:
                await start(*arguments)  # type: ignore[arg-type]
            await asyncio.Event().wait()

        await scenario.jobs.submit(request_of(), b"x", 10)
        monkeypatch.setattr(scenario.queue, "start", never_respond)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scenario.fetch(1), 0.2)
        await scenario.fetcher.requeue_received()
        other = WorkerQueue(scenario.jobs, "other")
        [entry] = await other.read(["interactive"], 1)
        job = await other.start(entry, 2)
        assert isinstance(job, ActiveJob)
        assert (job.id, job.attempts, job.crashes) == ("job", 1, 0)
        assert (await scenario.jobs.counts()).held == 1

    run_scenario(redis_url, steps)


def test_jobs_by_url_beyond_the_fetch_slots_are_deferred(redis_url: str) -> None:
    def by_url(job_id: str, url: str) -> JobRequest:
        return dataclasses.replace(request_of(job_id), audio=AudioRef("url", url, url))

    async def steps(scenario: FetchScenario) -> None:
        for number in range(4):
            await scenario.jobs.submit(by_url(f"slow-{number}", "http://slow.example/a"), b"", 100)
        await scenario.jobs.submit(by_url("other", "http://other.example/a"), b"", 100)
        await scenario.jobs.submit(by_url("damaged", "http://[::1/"), b"", 100)
        await scenario.jobs.submit(by_url("late", "http://third.example/a"), b"", 100)
        await scenario.jobs.submit(request_of("upload"), b"x", 100)
        assert await scenario.fetch(10) == ["slow-0", "slow-1", "other", "damaged", "upload"]
        assert len(scenario.slots) == 4
        deferred = await scenario.jobs.records(["slow-2", "slow-3", "late"])
        assert {(record.state, record.attempts) for record in deferred if record} == {("waiting", 0)}
        [slow] = [record for record in await scenario.jobs.records(["slow-0"]) if record]
        assert slow.state == "running"

    run_scenario(redis_url, steps)
