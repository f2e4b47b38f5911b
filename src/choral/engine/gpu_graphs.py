"""Launching work on a GPU: CUDA graphs of fixed batch sizes, and a timer that reads the device's own clock.

Without CUDA the functions are simply called; the eager path always works.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
MAX_IN_FLIGHT = 2  # launches: the one that runs, and the next


def sizes_up_to(max_size: int) -> list[int]:
    """Few enough to capture at start, close enough that batches need little padding."""
    small = [1, 2, 4, 8, *range(16, 65, 16), *range(96, 257, 32), *range(320, 4096, 64)]
    return [*(size for size in small if size < max_size), max_size]


class StepGraphs:
    def __init__(self, step: Callable[[int], Tensor], sizes: Sequence[int], device: torch.device) -> None:
        """`step(n)` runs on the first n entries of static buffers."""
        self._step, self.sizes = step, sorted(sizes)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):  # the largest first: the others reuse its memory
            step(size)  # compiles kernels, and initialises libraries
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = step(size)
            self._graphs[size] = graph, result

    def size_for(self, n: int) -> int:
        return next(size for size in self.sizes if size >= n)

    def run(self, n: int, n_times: int = 1) -> Tensor:
        """The last step's result, in a buffer that the next run overwrites."""
        size = self.size_for(n)
        if size not in self._graphs:
            return [self._step(size) for _ in range(n_times)][-1]
        graph, result = self._graphs[size]
        for _ in range(n_times):
            graph.replay()
        return result


class GpuTimer:
    """Measures what is launched with CUDA events, and reads them once the device has passed them.

    It also keeps the host at most one launch ahead of the device: a batch that is chosen later has more windows in it.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._pending: deque[tuple[Callable[[float], None], torch.cuda.Event, torch.cuda.Event]] = deque()

    def run(self, action: Callable[[], Result], on_measured: Callable[[float], None]) -> Result:
        """Launch `action`; `on_measured` gets its seconds on the device, during a later call."""
        self._collect()
        if not self._is_cuda:
            started_s = time.perf_counter()
            result = action()
            on_measured(time.perf_counter() - started_s)
            return result
        while len(self._pending) >= MAX_IN_FLIGHT:
            self._pending[0][-1].synchronize()
            self._collect()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        result = action()
        end.record()
        self._pending.append((on_measured, start, end))
        return result

    def _collect(self) -> None:
        while self._pending and self._pending[0][-1].query():  # type: ignore[no-untyped-call]
            on_measured, start, end = self._pending.popleft()
            on_measured(start.elapsed_time(end) / 1e3)
