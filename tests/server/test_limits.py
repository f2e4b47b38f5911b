"""When to come back, by how fast work is done; and what a key has used, kept on disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from choral.errors import QueueFull, StorageError
from choral.server.admission import AdmissionControl, CompletionRate
from choral.server.api_errors import ApiError, to_api_error
from choral.server.api_keys import ApiKey
from choral.server.quota import KeyQuota, KeyQuotas
from choral.server.usage import DAY_S, UsageEntry, UsageTable, open_usage


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_when_to_come_back_follows_from_what_was_done_lately() -> None:
    clock = Clock()
    rate = CompletionRate(clock)
    assert rate.retry_after_s(100) == 1  # nothing is known
    rate.restart()
    clock.now_s += 10
    assert rate.retry_after_s(2) == 10  # nothing was done in ten seconds
    rate.record(5)
    assert rate.retry_after_s(20) == 20  # two seconds each, and half of twenty
    for done in range(6, 46):
        clock.now_s += 0.25
        rate.record(done)
    assert rate.retry_after_s(45) == 10  # 45 in twenty seconds
    clock.now_s += 3600
    rate.restart()  # an hour of silence says nothing of the speed
    clock.now_s += 1
    rate.record(55)
    assert rate.retry_after_s(40) == 2
    assert rate.retry_after_s(10**6) == 120
    assert rate.retry_after_s(1) == 1


def test_a_full_room_says_when_to_come_back() -> None:
    admission = AdmissionControl(1, "requests")
    with (
        admission.admit(),
        pytest.raises(QueueFull, match="1 requests are already in progress: try again in 1 s") as full,
    ):
        admission.require_capacity()
    assert to_api_error(full.value).retry_after_s == 1
    assert to_api_error(QueueFull("from the engine")).retry_after_s == 5


def test_a_job_counts_once_and_a_day_is_enough() -> None:
    recorded: list[UsageEntry] = []
    clock = Clock()
    key = ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    quota = KeyQuota(recorded.append, wall_clock=clock)
    quota.charge(key, 30, "job-1")
    quota.charge(key, 30, "job-1")
    quota.add(key, 40, "job-2")  # a worker has done it already
    assert [(entry.id, entry.at, entry.duration_s) for entry in recorded] == [("job-1", 1000, 30), ("job-2", 1000, 40)]
    with pytest.raises(ApiError, match=r"has used 1\.2"):
        quota.charge(key, 1)
    clock.now_s += DAY_S
    quota.charge(key, 60, "job-3")
    assert len(recorded) == 3


def test_quotas_go_on_where_they_were() -> None:
    now, key = time.time(), ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    quotas = KeyQuotas(
        entries=[UsageEntry("1", "a", now, 50.0), UsageEntry("2", "b", now, 10.0), UsageEntry("3", "a", now, None)]
    )
    assert [entry.id for entry in quotas.deferred] == ["3"]
    with pytest.raises(ApiError, match=r"has used 0\.8; this audio is 0\.2 more"):
        quotas.of("a").charge(key, 11)
    quotas.of("a").charge(key, 11, "1")  # counted before
    quotas.of("c").charge(ApiKey(name="c", sha256="", audio_minutes_per_day=1), 60)


def test_what_was_recorded_is_on_disk_within_a_second_and_at_the_end(tmp_path: Path) -> None:
    now = time.time()
    first, last = UsageEntry("1", "a", now, 5.0), UsageEntry("2", "a", now, None)

    async def run() -> None:
        async with open_usage(tmp_path) as (writer, entries):
            assert entries == []
            writer.add(UsageEntry("old", "a", now - DAY_S, 5.0))
            writer.add(first)
            with pytest.raises(StorageError, match="choose another folder with --data"):
                await asyncio.to_thread(UsageTable, tmp_path)
            await asyncio.sleep(1.0)
            assert writer._pending == []  # written
            writer.add(last)
        async with open_usage(tmp_path) as (writer, entries):
            assert entries == [first, last]
            writer.add(UsageEntry("2", "a", now, 7.0))  # now its length is known
        async with open_usage(tmp_path) as (_, entries):
            assert [entry.duration_s for entry in entries] == [5.0, 7.0]

    asyncio.run(run())
