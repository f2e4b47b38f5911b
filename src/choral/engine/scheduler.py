"""What the engine does next: waiting work of many requests, drawn in turn, as much as there are free slots for.

A request with one window does not wait behind one with a hundred. A slot is room for one row of the decoder's batch;
a window takes as many as it has beams or samples. Plain Python, no torch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Scheduler(Generic[Job]):
    def __init__(self, n_slots_of: Callable[[Job], int]) -> None:
        self._n_slots_of = n_slots_of
        self._waiting: OrderedDict[Hashable, deque[Job]] = OrderedDict()

    def add(self, request: Hashable, job: Job) -> None:
        self._waiting.setdefault(request, deque()).append(job)

    def draw(self, n_free_slots: int, n_most: int, *, is_idle: bool) -> list[Job]:
        """The next jobs, round-robin over requests. An idle engine gets one even if it is larger than all slots."""
        drawn: list[Job] = []
        while self._waiting and len(drawn) < n_most:
            request, jobs = next(iter(self._waiting.items()))
            n_slots = self._n_slots_of(jobs[0])
            if n_slots > n_free_slots and not (is_idle and not drawn):
                break  # it waits at the head, so that small ones cannot pass it for ever
            drawn.append(jobs.popleft())
            n_free_slots -= n_slots
            del self._waiting[request]
            if jobs:
                self._waiting[request] = jobs
        return drawn

    def draw_all(self) -> list[Job]:
        jobs = [job for queue in self._waiting.values() for job in queue]
        self._waiting.clear()
        return jobs

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))
