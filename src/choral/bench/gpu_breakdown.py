"""Where the time of one decoder step goes, by kernel, as the GPU's own profiler has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

N_STEPS = 20
KINDS = {
    "cross-attention": ("_cross_attention", "_combine_splits"),
    "self-attention": ("_self_attention",),
    "products": ("_linear", "nvjet", "gemm", "cutlass", "splitK", "gemv"),
    "norms": ("_norm",),
    "rules and choice": ("_survey", "_decide"),
}


@dataclass(frozen=True)
class Breakdown:
    n_rows: int
    kind_us: dict[str, float]  # microseconds a step
    n_kernels: int


def break_down(step: Callable[[], object], n_rows: int) -> Breakdown:
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(N_STEPS):
            step()
        torch.cuda.synchronize()
    kind_us: dict[str, float] = defaultdict(float)
    n_kernels = 0
    for event in profiled.key_averages():
        if event.self_device_time_total > 0:
            kind_us[kind_of(event.key)] += event.self_device_time_total / N_STEPS
            n_kernels += event.count
    return Breakdown(n_rows, dict(sorted(kind_us.items(), key=lambda item: -item[1])), round(n_kernels / N_STEPS))


def kind_of(kernel: str) -> str:
    return next((kind for kind, names in KINDS.items() if any(name in kernel for name in names)), "other")
