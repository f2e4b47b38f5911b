"""Is what the GPU does right? Checked before anything is timed.

Each kernel against torch in float32, over shapes; then whole windows with every kind of option, together, against the
same on the CPU, the reference for everything: in float32 the tokens must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE
from choral.bench.random_model import random_engine
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.kernels import cross_attention, fp8, gemv, norm, self_attention, write_kv

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
N_WINDOWS, MOST_TOKENS = 24, 40
MOST_SCORE_ERROR = 1e-3
BYTES_TOLERANCE = 2e-3  # a few land on the other side of a step


@dataclass(frozen=True)
class Check:
    name: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance  # not a number does not


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@torch.inference_mode()
def check_kernels(device: torch.device) -> list[Check]:
    torch.manual_seed(0)
    return [check for dtype in TOLERANCES for check in _kernel_checks(device, dtype)]


def _kernel_checks(device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    def check(name: str, result: Tensor, expected: Tensor) -> Check:
        return Check(
            f"{name}, {str(dtype).removeprefix('torch.')}", relative_error(result, expected), TOLERANCES[dtype]
        )

    n_slots, n_heads, head_dim = 40, 20, 64
    for n_rows, n_frames in ((1, 1500), (3, 1500), (33, 1500), (5, 100)):
        slots = torch.randperm(n_slots, device=device)[:n_rows].int()
        queries = random(n_rows, n_heads, head_dim)
        keys, values = (random(n_slots, n_heads, n_frames, head_dim) for _ in range(2))
        newest = torch.zeros(n_rows, dtype=torch.int32, device=device)
        heard = cross_attention.cross_attention(queries, keys, values, slots, newest)
        expected = cross_attention.reference(queries.float(), keys, values, slots)
        yield check(f"cross-attention of {n_rows} rows, {n_frames} frames", heard, expected)
    keys, values = (random(n_slots, n_heads, 448, head_dim) for _ in range(2))
    slots = torch.randperm(n_slots, device=device)[:30].int()
    newest = torch.randint(0, 448, (30,), device=device).int()
    for n_rows in (2, 30):
        state = random(n_rows, 3 * n_heads * head_dim), slots[:n_rows], newest[:n_rows]
        expected = self_attention.reference(state[0].float(), keys.float(), values.float(), *state[1:])
        written = self_attention.self_attention(state[0], keys, values, *state[1:])
        yield check(f"self-attention of {n_rows} rows", written, expected)
    for n_in, n_out in ((1280, 3840), (5120, 1280)):
        x, weight, bias = random(2, n_in), random(n_out, n_in) * n_in**-0.5, random(n_out)
        layer = gemv.NormLinear.of(random(n_in), random(n_in), weight, bias)
        in_float = gemv.NormLinear(*(part.float() for part in (weight, layer.gain, layer.shift, layer.totals)))
        expected = gemv.reference(x.float(), in_float)
        yield check(f"{n_in} × {n_out} for two rows", gemv.norm_linear(x, layer), expected)
    states, gains = random(100, 1280), (random(1280), random(1280))
    expected = norm.reference(states.float().clone(), gains[1].float(), gains[0].float(), gains[1].float())
    yield check("norm", norm.add_and_norm(states, gains[1], *gains), expected)
    projected = random(3, 1500, 2 * n_heads * head_dim)
    results, wanted = ([torch.zeros_like(random(n_slots, n_heads, 1500, 64)) for _ in range(2)] for _ in range(2))
    write_kv.write_cross_kv(projected, results[0], results[1], slots[:3])
    write_kv.reference(projected, wanted[0], wanted[1], slots[:3])
    yield check("keys take their places", results[0], wanted[0])
    rows = fp8.quantize_rows(states, gelu=True)
    exact = fp8.reference(states, gelu=True)
    yield Check(
        f"bytes, {dtype}", relative_error(rows.values.float() * rows.scales, exact.values.float() * exact.scales), 2e-3
    )


OPTIONS: Sequence[dict[str, object]] = (
    {},
    {"timestamps": False, "prompt": (50, 60, 70)},
    {"temperature": 0.7, "n_candidates": 3},
    {"n_candidates": 4},
    {"max_tokens": 7, "task": "translate"},
    {"temperature": 1.0, "seed": 3},
)


def check_windows(device: str) -> list[Check]:
    """Random weights in the shape of tiny: windows with all kinds of options, together, as on the CPU."""
    on_cpu, on_gpu = (_decoded(name) for name in ("cpu", device))
    n_other = sum(mine.tokens != theirs.tokens for mine, theirs in zip(on_gpu, on_cpu, strict=True))
    errors = [_score_error(mine, theirs) for mine, theirs in zip(on_gpu, on_cpu, strict=True)]
    return [
        Check(f"windows of {len(on_cpu)} whose tokens differ from the CPU's, float32", n_other, 0),
        Check("and their scores", float(np.max(errors)), MOST_SCORE_ERROR),
    ]


def _score_error(mine: Decoded, theirs: Decoded) -> float:
    """The largest, of a window and of its tokens, as far as both have the same number of them."""
    assert mine.token_logprobs is not None
    assert theirs.token_logprobs is not None
    tokens = zip(mine.token_logprobs, theirs.token_logprobs, strict=False)
    return max(abs(one - other) for one, other in [(mine.avg_logprob, theirs.avg_logprob), *tokens])


def _decoded(device: str) -> list[Decoded]:
    engine = random_engine("tiny", EngineSettings(device=device, compute_type="float32", slots=24))
    try:
        return _run(engine)
    finally:
        engine.close()


def _run(engine: Engine) -> list[Decoded]:
    random = np.random.default_rng(1)
    pending = []
    for number in range(N_WINDOWS):
        samples = random.normal(0, 0.05, (3 + number) * SAMPLE_RATE).astype(np.float32)
        audio = WindowAudio(samples, lead=0, n_mel_frames=samples.size // HOP_LENGTH, mel_peak=None)
        options = {
            "max_tokens": MOST_TOKENS,
            "language": "en",
            "token_logprobs": True,
            **OPTIONS[number % len(OPTIONS)],
        }
        pending.append(engine.submit(Window(audio, DecodeParams(**options))))  # type: ignore[arg-type]
    return [each.result() for each in pending]
