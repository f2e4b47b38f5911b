"""Lanes: threads side by side, each with its share of the cores."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from choral.engine.cpu_lanes import MAX_LANES, CpuLanes


@pytest.fixture(autouse=True)
def _own_number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("n_threads", "n_lanes", "n_each"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (8, 4, 2)])
def test_lanes_share_the_threads(n_threads: int, n_lanes: int, n_each: int) -> None:
    torch.set_num_threads(n_threads)
    lanes = CpuLanes()
    all_here = threading.Barrier(n_lanes)

    def threads_of_lane(_: int) -> int:
        all_here.wait(timeout=20)  # no lane takes two
        torch.ones(100, 100) @ torch.ones(100, 100)
        return torch.get_num_threads()

    assert lanes.n_lanes == n_lanes <= MAX_LANES
    assert lanes.map(threads_of_lane, range(n_lanes)) == [n_each] * n_lanes
    assert torch.get_num_threads() == n_threads
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [n_threads]


def test_results_come_in_order() -> None:
    assert CpuLanes().map(lambda n: n * n, range(50)) == [n * n for n in range(50)]


def test_a_failure_is_raised_after_all_parts_and_the_lanes_survive() -> None:
    lanes = CpuLanes()
    done: list[int] = []

    def fail_first(n: int) -> int:
        if n == 0:
            raise ValueError("the first one")
        done.append(n)
        return n

    with pytest.raises(ValueError, match="the first one"):
        lanes.map(fail_first, range(9))
    assert sorted(done) == list(range(1, 9))
    assert lanes.map(fail_first, [5]) == [5]


def test_lanes_free_their_results_and_end_when_collected() -> None:
    before = set(threading.enumerate())
    lanes = CpuLanes()
    mine = [thread for thread in threading.enumerate() if thread not in before]
    audio = torch.ones(10)
    kept = weakref.ref(audio)
    lanes.map(lambda part: part.sum(), [audio])
    lanes.map(lambda n: n, range(len(mine)))
    del audio
    gc.collect()
    assert kept() is None
    assert mine
    del lanes
    gc.collect()
    for thread in mine:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in mine)
