"""Threads that work side by side on the parts of one step, each with its own share of the cores.

A core that encodes a window by itself waits for nobody; two that share one wait for each other at every layer.
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
Task = tuple["Future[Any]", Callable[[], Any]]

MOST_LANES = 4  # more would make a few windows wait long for many


class CpuLanes:
    """To be made on the thread whose number of threads is to be shared. Ends when it is forgotten."""

    def __init__(self) -> None:
        n_threads = torch.get_num_threads()
        self.n_lanes = min(MOST_LANES, n_threads)
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # Daemons, unlike a pool's: one that ends with the main thread would fail callers that work on.
        all_set = threading.Barrier(self.n_lanes + 1)
        for _ in range(self.n_lanes):
            arguments = (self._tasks, n_threads // self.n_lanes, all_set)
            threading.Thread(target=work, args=arguments, name="choral-lane", daemon=True).start()
        all_set.wait()
        torch.set_num_threads(n_threads)  # threads that start later take the number that was set last
        weakref.finalize(self, end, self._tasks, self.n_lanes)

    def map(self, action: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        futures: list[Future[Result]] = []
        for part in parts:
            futures.append(Future())
            self._tasks.put((futures[-1], partial(action, part)))
        wait(futures)  # all of them, whatever fails: nobody works on behind the caller's back
        return [future.result() for future in futures]


def work(tasks: SimpleQueue[Task | None], n_threads: int, all_set: threading.Barrier) -> None:
    torch.set_num_threads(n_threads)
    assert torch.get_num_threads() == n_threads  # asking settles it: until then a thread takes what is set elsewhere
    all_set.wait()
    while (task := tasks.get()) is not None:
        future, action = task
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)
        del task, future, action  # they hold the last window's audio and its result


def end(tasks: SimpleQueue[Task | None], n_lanes: int) -> None:
    for _ in range(n_lanes):
        tasks.put(None)
