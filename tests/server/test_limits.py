"""When to come back, by how fast work is done; and what a key has used, kept on disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from choral.errors import QueueFull, StorageError
from choral.server.keys import ApiKey
from choral.server.limits import Meter, Meters
from choral.server.pace import Pace
from choral.server.problems import Problem, problem_of
from choral.server.room import Room
from choral.server.usage import DAY_S, Heard, UsageTable, opened_usage


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_when_to_come_back_follows_from_what_was_done_lately() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.wait_s(100) == 1  # nothing is known
    pace.restart()
    clock.now_s += 10
    assert pace.wait_s(2) == 10  # nothing was done in ten seconds
    pace.note(5)
    assert pace.wait_s(20) == 20  # two seconds each, and half of twenty
    for done in range(6, 46):
        clock.now_s += 0.25
        pace.note(done)
    assert pace.wait_s(45) == 10  # 45 in twenty seconds
    clock.now_s += 3600
    pace.restart()  # an hour of silence says nothing of the speed
    clock.now_s += 1
    pace.note(55)
    assert pace.wait_s(40) == 2
    assert pace.wait_s(10**6) == 120
    assert pace.wait_s(1) == 1


def test_a_full_room_says_when_to_come_back() -> None:
    room = Room(1, "requests")
    with room.place(), pytest.raises(QueueFull, match="1 requests are under way already: try again in 1 s") as full:
        room.require()
    assert problem_of(full.value).retry_after_s == 1
    assert problem_of(QueueFull("from the engine")).retry_after_s == 5


def test_a_job_counts_once_and_a_day_is_enough() -> None:
    noted: list[Heard] = []
    clock = Clock()
    key = ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    meter = Meter(noted.append, calendar=clock)
    meter.charge(key, 30, "job-1")
    meter.charge(key, 30, "job-1")
    meter.add(key, 40, "job-2")  # a worker has done it already
    assert [(entry.id, entry.at, entry.duration_s) for entry in noted] == [("job-1", 1000, 30), ("job-2", 1000, 40)]
    with pytest.raises(Problem, match=r"has sent 1\.2"):
        meter.charge(key, 1)
    clock.now_s += DAY_S
    meter.charge(key, 60, "job-3")
    assert len(noted) == 3


def test_meters_go_on_where_they_were() -> None:
    now, key = time.time(), ApiKey(name="a", sha256="", audio_minutes_per_day=1)
    meters = Meters(entries=[Heard("1", "a", now, 50.0), Heard("2", "b", now, 10.0), Heard("3", "a", now, None)])
    assert [entry.id for entry in meters.owed] == ["3"]
    with pytest.raises(Problem, match=r"has sent 0\.8, and this is 0\.2 more"):
        meters.of("a").charge(key, 11)
    meters.of("a").charge(key, 11, "1")  # counted before
    meters.of("c").charge(ApiKey(name="c", sha256="", audio_minutes_per_day=1), 60)


def test_what_was_noted_is_on_disk_within_a_second_and_at_the_end(tmp_path: Path) -> None:
    now = time.time()
    first, last = Heard("1", "a", now, 5.0), Heard("2", "a", now, None)

    async def run() -> None:
        async with opened_usage(tmp_path) as (book, entries):
            assert entries == []
            book.note(Heard("old", "a", now - DAY_S, 5.0))
            book.note(first)
            with pytest.raises(StorageError, match="choose another folder with --data"):
                await asyncio.to_thread(UsageTable, tmp_path)
            await asyncio.sleep(1.0)
            assert book._noted == []  # written
            book.note(last)
        async with opened_usage(tmp_path) as (book, entries):
            assert entries == [first, last]
            book.note(Heard("2", "a", now, 7.0))  # now its length is known
        async with opened_usage(tmp_path) as (_, entries):
            assert [entry.duration_s for entry in entries] == [5.0, 7.0]

    asyncio.run(run())
