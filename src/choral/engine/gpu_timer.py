"""What steps take on a GPU, by its own clock, read as soon as that is possible without waiting.

The host launches and goes on: how long its calls take says nothing. So each step is timed by events on the device, and
what a step will take is told from those of its kind that have ended. The host keeps one step ahead and no more: what is
decided late is decided with more windows at hand.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

import torch

from choral.engine.cost_model import StepCost

Result = TypeVar("Result")
MOST_UNDER_WAY = 2


class GpuTimer:
    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._costs: dict[str, StepCost] = defaultdict(StepCost)
        self._pending: deque[tuple[str, int, int, torch.cuda.Event, torch.cuda.Event]] = deque()

    def seconds(self, kind: str, n_items: int) -> float | None:
        cost = self._costs[kind]
        return cost.seconds(n_items) if cost.is_known else None

    def run(self, kind: str, n_items: int, action: Callable[[], Result], n_times: int = 1) -> Result:
        """Does it, and will know what one of the times took."""
        self._collect()
        if not self._is_cuda:
            started_s = time.perf_counter()
            result = action()
            self._costs[kind].learn(n_items, (time.perf_counter() - started_s) / n_times)
            return result
        while len(self._pending) >= MOST_UNDER_WAY:
            self._pending[0][-1].synchronize()
            self._collect()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        result = action()
        end.record()
        self._pending.append((kind, n_items, n_times, start, end))
        return result

    def _collect(self) -> None:
        while self._pending and self._pending[0][-1].query():  # type: ignore[no-untyped-call]
            kind, n_items, n_times, start, end = self._pending.popleft()
            self._costs[kind].learn(n_items, start.elapsed_time(end) / 1e3 / n_times)
