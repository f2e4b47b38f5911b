"""How close the encoder and the decoder step come to the hardware's limits, and which kernels take the time.

The limits are measured: the rates of a large copy, a large matrix product and attention alone. A 30 s window needs the
encoder's products and attention at those rates, and each decoder step must read weights, keys and values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from choral.engine.gpu_runner import GpuRunner
from choral.engine.gpu_state import DONE, HOST_SAMPLED, LENGTH
from choral.model.dims import ModelDims
from choral.model.gpu_layers import attention

BATCH = 16  # windows in the encoder
N_TIMES = 20
KERNEL_KINDS = {
    "cross-attention": ("_cross_attention", "_merge_splits"),
    "self-attention": ("_self_attention",),
    "products": ("_linear", "_gemv", "nvjet", "gemm", "cutlass", "splitK", "gemv"),
    "norms": ("_norm",),
    "sampling": ("_scan_blocks", "_select_tokens"),
}


@dataclass(frozen=True)
class HardwareLimits:
    copy_tb_s: float
    product_tflop_s: float  # in bfloat16
    attention_tflop_s: float


@dataclass(frozen=True)
class LimitShare:
    """Measured time, and the time at the hardware's limits."""

    name: str
    measured_ms: float
    limit_ms: float

    @property
    def share(self) -> float:
        return self.limit_ms / self.measured_ms


@dataclass(frozen=True)
class KernelTimes:
    """Microseconds per decoder step by kind of kernel."""

    n_rows: int
    kind_us: dict[str, float]
    n_kernels: int


@dataclass(frozen=True)
class StepShare(LimitShare):
    breakdown: KernelTimes


def measure_limits(device: torch.device) -> HardwareLimits:
    data = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device=device)
    target = torch.empty_like(data)
    copy_ms = device_ms(lambda: target.copy_(data))
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = device_ms(lambda: a @ b)
    q, k, v = (torch.randn(BATCH, 20, 1500, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    attention_ms = device_ms(lambda: attention(q, k, v))
    return HardwareLimits(
        copy_tb_s=2 * data.numel() / copy_ms / 1e9,
        product_tflop_s=2 * 8192**3 / product_ms / 1e9,
        attention_tflop_s=4 * BATCH * 20 * 1500**2 * 64 / attention_ms / 1e9,
    )


def device_ms(action: Callable[[], object]) -> float:
    """Median time by the device's own clock."""
    for _ in range(3):
        action()
    times: list[float] = []
    for _ in range(N_TIMES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        action()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[N_TIMES // 2]


def encoder_share(runner: GpuRunner, dims: ModelDims, limits: HardwareLimits) -> LimitShare:
    measured_ms = device_ms(lambda: runner.encoder.graphs.run(BATCH)) / BATCH
    return LimitShare(f"encoder, a window of {BATCH}", measured_ms, encoder_limit_ms(dims, limits))


def encoder_limit_ms(dims: ModelDims, limits: HardwareLimits) -> float:
    n_frames, width, n_layers = dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_layer
    products = 2 * n_frames * (3 * width * dims.n_mels * 2 + 3 * width * width + n_layers * 12 * width * width)
    attention = 4 * n_layers * n_frames**2 * width
    return products / limits.product_tflop_s / 1e9 + attention / limits.attention_tflop_s / 1e9


def step_limit_ms(dims: ModelDims, limits: HardwareLimits, n_rows: int, n_tokens: int, cross_kv_bytes: int) -> float:
    """Time to read all weights once, and the keys and values of each row; `cross_kv_bytes` is per number."""
    width, n_layers = dims.n_text_state, dims.n_text_layer
    weights = (n_layers * 14 * width * width + dims.n_vocab * width) * 2
    per_row = n_layers * 2 * width * (dims.n_audio_ctx * cross_kv_bytes + n_tokens * 2)
    return (weights + n_rows * per_row) / limits.copy_tb_s / 1e9


def window_share(
    runner: GpuRunner, dims: ModelDims, limits: HardwareLimits, windows_per_s: float, n_tokens: int
) -> LimitShare:
    """A whole window with all slots in use: encoder, projection to keys and values, and all decoder steps."""
    projected = 2 * dims.n_audio_ctx * dims.n_text_layer * 2 * dims.n_text_state * dims.n_audio_state
    n_rows = runner.capacity.n_slots
    step_ms = step_limit_ms(dims, limits, n_rows, n_tokens // 2, cross_kv_bytes(runner))
    limit_ms = encoder_limit_ms(dims, limits) + projected / limits.product_tflop_s / 1e9 + n_tokens * step_ms / n_rows
    return LimitShare(f"a window of {n_tokens} tokens, saturated", 1e3 / windows_per_s, limit_ms)


def cross_kv_bytes(runner: GpuRunner) -> int:
    return 1 if runner.compute_type == "fp8" else 2


def step_share(runner: GpuRunner, dims: ModelDims, limits: HardwareLimits, n_rows: int, n_tokens: int) -> StepShare:
    limit_ms = step_limit_ms(dims, limits, n_rows, n_tokens, cross_kv_bytes(runner))
    int_state = runner.state.int_state
    runner.rows[:, :n_rows] = torch.arange(n_rows, dtype=torch.int32, device=int_state.device)
    # Rows that the host samples keep their length, however often the step runs.
    int_state[LENGTH], int_state[HOST_SAMPLED], int_state[DONE] = n_tokens, 1, 0
    measured_ms = device_ms(lambda: runner.graphs.run(n_rows))
    breakdown = profile_kernels(lambda: runner.graphs.run(n_rows), n_rows)
    int_state[DONE] = 1
    runner.rows.fill_(runner.capacity.n_slots)
    return StepShare(f"decoder step of {n_rows}", measured_ms, limit_ms, breakdown)


def profile_kernels(step: Callable[[], object], n_rows: int) -> KernelTimes:
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(N_TIMES):
            step()
        torch.cuda.synchronize()
    kind_us: dict[str, float] = defaultdict(float)
    n_kernels = 0
    for event in profiled.key_averages():
        if event.self_device_time_total > 0:
            kind_us[kernel_kind(event.key)] += event.self_device_time_total / N_TIMES
            n_kernels += event.count
    return KernelTimes(n_rows, dict(sorted(kind_us.items(), key=lambda item: -item[1])), round(n_kernels / N_TIMES))


def kernel_kind(kernel: str) -> str:
    return next((kind for kind, names in KERNEL_KINDS.items() if any(name in kernel for name in names)), "other")
