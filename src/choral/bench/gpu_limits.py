"""What this GPU allows, measured, and how near encoder and decoder step come to it.

The arithmetic is that of a 30 s window: products and attention of the encoder at the rate of a large product and of
attention alone; keys, values and weights that a step must read, at the rate of a large copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from choral.bench.gpu_breakdown import Breakdown, break_down
from choral.engine.gpu_runner import GpuRunner
from choral.engine.gpu_state import DONE, HOST_SAMPLED, LENGTH
from choral.model.dims import ModelDims
from choral.model.gpu_layers import attention

BATCH = 16  # windows in the encoder
N_TIMES = 20


@dataclass(frozen=True)
class Ceilings:
    copy_tb_s: float
    product_tflop_s: float  # of the products' own precision
    attention_tflop_s: float


@dataclass(frozen=True)
class Share:
    """What something takes, what it would take at the ceilings, and by how much it falls short."""

    name: str
    measured_ms: float
    limit_ms: float

    @property
    def share(self) -> float:
        return self.limit_ms / self.measured_ms


def ceilings(device: torch.device) -> Ceilings:
    data = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device=device)
    target = torch.empty_like(data)
    copy_ms = device_ms(lambda: target.copy_(data))
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = device_ms(lambda: a @ b)
    q, k, v = (torch.randn(BATCH, 20, 1500, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    attention_ms = device_ms(lambda: attention(q, k, v))
    return Ceilings(
        copy_tb_s=2 * data.numel() / copy_ms / 1e9,
        product_tflop_s=2 * 8192**3 / product_ms / 1e9,
        attention_tflop_s=4 * BATCH * 20 * 1500**2 * 64 / attention_ms / 1e9,
    )


def device_ms(action: Callable[[], object], n_times: int = N_TIMES) -> float:
    """The median, by the device's own clock."""
    for _ in range(3):
        action()
    times: list[float] = []
    for _ in range(n_times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        action()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[n_times // 2]


def encoder_share(runner: GpuRunner, dims: ModelDims, top: Ceilings) -> Share:
    measured_ms = device_ms(lambda: runner.encoder.graphs.run(BATCH)) / BATCH
    return Share(f"encoder, a window of {BATCH}", measured_ms, encoder_limit_ms(dims, top))


def encoder_limit_ms(dims: ModelDims, top: Ceilings) -> float:
    n_frames, width, n_layers = dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_layer
    products = 2 * n_frames * (3 * width * dims.n_mels * 2 + 3 * width * width + n_layers * 12 * width * width)
    attention = 4 * n_layers * n_frames**2 * width
    return products / top.product_tflop_s / 1e9 + attention / top.attention_tflop_s / 1e9


def step_limit_ms(dims: ModelDims, top: Ceilings, n_rows: int, n_written: int, heard_bytes: int) -> float:
    """All weights once, and each row's own keys and values, whose numbers have so many bytes."""
    width, n_layers = dims.n_text_state, dims.n_text_layer
    weights = (n_layers * 14 * width * width + dims.n_vocab * width) * 2
    a_row = n_layers * 2 * width * (dims.n_audio_ctx * heard_bytes + n_written * 2)
    return (weights + n_rows * a_row) / top.copy_tb_s / 1e9


def window_share(runner: GpuRunner, dims: ModelDims, top: Ceilings, windows_per_s: float, n_tokens: int) -> Share:
    """Of a whole window where all slots are taken: heard, its keys and values projected, its tokens decoded."""
    projected = 2 * dims.n_audio_ctx * dims.n_text_layer * 2 * dims.n_text_state * dims.n_audio_state
    n_rows = runner.capacity.n_slots
    step_ms = step_limit_ms(dims, top, n_rows, n_tokens // 2, heard_bytes(runner))
    limit_ms = encoder_limit_ms(dims, top) + projected / top.product_tflop_s / 1e9 + n_tokens * step_ms / n_rows
    return Share(f"a window of {n_tokens} tokens, saturated", 1e3 / windows_per_s, limit_ms)


def heard_bytes(runner: GpuRunner) -> int:
    return 1 if runner.compute_type == "fp8" else 2


@dataclass(frozen=True)
class StepShare(Share):
    breakdown: Breakdown


def step_share(runner: GpuRunner, dims: ModelDims, top: Ceilings, n_rows: int, n_written: int) -> StepShare:
    limit_ms = step_limit_ms(dims, top, n_rows, n_written, heard_bytes(runner))
    int_state = runner.state.int_state
    runner.rows[:, :n_rows] = torch.arange(n_rows, dtype=torch.int32, device=int_state.device)
    # Windows that the host decides on stay where they are, however often the step runs.
    int_state[LENGTH], int_state[HOST_SAMPLED], int_state[DONE] = n_written, 1, 0
    measured_ms = device_ms(lambda: runner.graphs.run(n_rows))
    breakdown = break_down(lambda: runner.graphs.run(n_rows), n_rows)
    int_state[DONE] = 1
    runner.rows.fill_(runner.capacity.n_slots)
    return StepShare(f"decoder step of {n_rows}", measured_ms, limit_ms, breakdown)
