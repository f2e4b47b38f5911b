"""The tables of `choral bench gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from choral.cli.console import format_table

if TYPE_CHECKING:
    from choral.bench.gpu_limits import HardwareLimits
    from choral.bench.gpu_quality import Quality
    from choral.bench.gpu_speculation import SpeculationResult
    from choral.cli.bench_gpu import GpuResult


def quality_table(model: str, qualities: Sequence[Quality]) -> str:
    rows = [[model, "tokens as in float32 on the CPU", "not worse", "word error rate"]]
    for one in qualities:
        n_same, n_not_worse = f"{one.same_tokens} of {one.n_clips}", f"{one.not_worse} of {one.n_clips}"
        rows.append([f"{one.compute_type} on {one.device}", n_same, n_not_worse, f"{one.wer_percent:.2f}%"])
    return format_table(rows, numbers=(1, 2, 3)) + "\n"


def speed_table(results: Sequence[GpuResult], transformers: dict[str, float]) -> str:
    loads = ("one window", "10 callers", "50 callers", "mean latency", "first token p50/p95", "saturated", "real time")
    rows = [["", "ready in", *loads, "× transformers"]]
    for result in results:
        measured, (few, many) = result.loads, result.loads.requests
        ratio = measured.windows_per_s / transformers[result.shape] if result.shape in transformers else None
        rows.append(
            [
                result.name,
                f"{result.start_s:.1f} s",
                f"{measured.single_ms:.0f} ms",
                f"{few.requests_per_s:.1f}/s",
                f"{many.requests_per_s:.1f}/s",
                f"{many.mean_latency_ms:.0f} ms",
                f"{many.first_token_p50_ms:.0f}/{many.first_token_p95_ms:.0f} ms",
                f"{measured.windows_per_s:.1f} windows/s",
                f"{measured.times_real_time:,.0f} ×",
                "" if ratio is None else f"{ratio:.1f}",
            ]
        )
    return format_table(rows, numbers=range(1, len(rows[0]))) + "\n"


def speculation_table(results: Sequence[SpeculationResult]) -> str:
    if not results:
        return ""
    rows = [["draft of 2 layers", "accepted", "tokens a step", "one window", "50 callers", "saturated"]]
    for result in results:
        accepted = "no draft" if result.acceptance_percent is None else f"{result.acceptance_percent}%"
        speeds = [
            f"{result.single_ms:.0f} ms",
            f"{result.requests_per_s:.1f}/s",
            f"{result.windows_per_s:.1f} windows/s",
        ]
        rows.append([f"{result.shape} {result.compute_type}", accepted, f"{result.tokens_per_step:.2f}", *speeds])
    return format_table(rows, numbers=range(1, len(rows[0]))) + "\n"


def limits_table(limits: HardwareLimits, results: Sequence[GpuResult]) -> str:
    head = (
        f"this GPU: copies {limits.copy_tb_s:.2f} TB/s, products {limits.product_tflop_s:.0f} TFLOP/s in bfloat16, "
        f"attention {limits.attention_tflop_s:.0f} TFLOP/s\n"
    )
    rows = [["", "", "takes", "at its limit", "share"]]
    for result in results:
        for share in (result.encoder, *result.steps, result.whole):
            times = [f"{share.measured_ms:.2f} ms", f"{share.limit_ms:.2f} ms"]
            rows.append([result.name, share.name, *times, f"{share.share:.0%}"])
    return head + format_table(rows, numbers=(2, 3, 4)) + "\n"


def kernel_table(results: Sequence[GpuResult]) -> str:
    kinds = list(dict.fromkeys(kind for result in results for step in result.steps for kind in step.breakdown.kind_us))
    rows = [["kernels of a step, µs", "", *kinds, "launches"]]
    for result in results:
        for step in result.steps:
            times = [f"{step.breakdown.kind_us.get(kind, 0):.0f}" for kind in kinds]
            rows.append([result.name, step.name, *times, str(step.breakdown.n_kernels)])
    return format_table(rows, numbers=range(2, len(rows[0]))) + "\n"
