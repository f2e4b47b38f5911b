"""A step of fixed shapes as CUDA graphs, one for each of a few sizes: the host launches it whole.

Without CUDA the step is simply called; the eager way always works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def sizes_up_to(n_most: int) -> list[int]:
    """Few enough to capture at start, close enough that little of a batch is filled up with nothing."""
    small = [1, 2, 4, 8, *range(16, 65, 16), *range(96, 257, 32), *range(320, 4096, 64)]
    return [*(size for size in small if size < n_most), n_most]


class StepGraphs:
    def __init__(self, step: Callable[[int], Tensor], sizes: Sequence[int], device: torch.device) -> None:
        """`step(n)` works on the first n entries of buffers that stay where they are."""
        self._step, self.sizes = step, sorted(sizes)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):  # the largest first: the others find its memory
            step(size)  # compiles what is not compiled, and lets libraries set themselves up
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = step(size)
            self._graphs[size] = graph, result

    def size_for(self, n: int) -> int:
        return next(size for size in self.sizes if size >= n)

    def run(self, n: int, n_times: int = 1) -> Tensor:
        """The last step's result, which the next run overwrites."""
        size = self.size_for(n)
        if size not in self._graphs:
            return [self._step(size) for _ in range(n_times)][-1]
        graph, result = self._graphs[size]
        for _ in range(n_times):
            graph.replay()
        return result
