"""Threads that run the parts of one step side by side, each with its own share of the cores.

A window encoded by one core needs no synchronisation; two cores on one window wait for each other at every layer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")
Call = tuple["Future[Any]", Callable[[], Any]]

MAX_LANES = 4  # with more, a few windows would wait long for a large batch


class CpuLanes:
    """Create it on the thread whose torch threads are divided among the lanes. Its threads end when it is collected."""

    def __init__(self) -> None:
        n_threads = torch.get_num_threads()
        self.n_lanes = min(MAX_LANES, n_threads)
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        # Daemon threads, unlike those of an executor, which end with the main thread and fail callers that outlive it.
        all_started = threading.Barrier(self.n_lanes + 1)
        for _ in range(self.n_lanes):
            arguments = (self._calls, n_threads // self.n_lanes, all_started)
            threading.Thread(target=run_lane, args=arguments, name="choral-lane", daemon=True).start()
        all_started.wait()
        torch.set_num_threads(n_threads)  # threads that start later inherit the number that was set last
        weakref.finalize(self, end_lanes, self._calls, self.n_lanes)

    def map(self, action: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        futures: list[Future[Result]] = []
        for part in parts:
            futures.append(Future())
            self._calls.put((futures[-1], partial(action, part)))
        wait(futures)  # all of them, even if one fails: no lane is left running when this returns
        return [future.result() for future in futures]


def run_lane(calls: SimpleQueue[Call | None], n_threads: int, all_started: threading.Barrier) -> None:
    torch.set_num_threads(n_threads)
    assert torch.get_num_threads() == n_threads  # reading it fixes it; until then a thread follows the global setting
    all_started.wait()
    while (call := calls.get()) is not None:
        future, action = call
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)
        del call, future, action  # they hold the last window's audio and its result


def end_lanes(calls: SimpleQueue[Call | None], n_lanes: int) -> None:
    for _ in range(n_lanes):
        calls.put(None)
