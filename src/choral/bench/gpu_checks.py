"""Are the GPU's results right? Checked before anything is timed.

Compares each kernel with torch in float32 over several shapes, then decodes windows with every kind of option in one
batch and compares them with the CPU, the reference: in float32 the tokens must be equal.
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
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.kernels import cross_attention, fp8, linear, norm, self_attention, write_kv

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
N_WINDOWS, MAX_TOKENS = 24, 40
MAX_SCORE_ERROR = 1e-3
FP8_TOLERANCE = 2e-3  # a few values round to the other neighbour


@dataclass(frozen=True)
class Check:
    name: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@torch.inference_mode()
def check_kernels(device: torch.device) -> list[Check]:
    torch.manual_seed(0)
    return [check for dtype in TOLERANCES for check in _kernel_checks(device, dtype)]


def _kernel_checks(device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    def check(name: str, result: Tensor, expected: Tensor, tolerance: float = TOLERANCES[dtype]) -> Check:
        return Check(f"{name}, {str(dtype).removeprefix('torch.')}", relative_error(result, expected), tolerance)

    n_slots, n_heads, head_dim = 40, 20, 64
    for n_rows, n_frames in ((1, 1500), (3, 1500), (33, 1500), (5, 100)):
        slots = torch.randperm(n_slots, device=device)[:n_rows].int()
        queries = random(n_rows, n_heads, head_dim)
        keys, values = (random(n_slots, n_heads, n_frames, head_dim) for _ in range(2))
        newest = torch.zeros(n_rows, dtype=torch.int32, device=device)
        result = cross_attention.cross_attention(queries, keys, values, slots, newest)
        expected = cross_attention.reference(queries.float(), keys, values, slots)
        yield check(f"cross-attention of {n_rows} rows, {n_frames} frames", result, expected)
    keys, values = (random(n_slots, n_heads, 448, head_dim) for _ in range(2))
    slots = torch.randperm(n_slots, device=device)[:30].int()
    newest = torch.randint(0, 448, (30,), device=device).int()
    for n_rows in (2, 30):
        state = random(n_rows, 3 * n_heads * head_dim), slots[:n_rows], newest[:n_rows]
        expected = self_attention.reference(state[0].float(), keys.float(), values.float(), *state[1:])
        result = self_attention.self_attention(state[0], keys, values, *state[1:])
        yield check(f"self-attention of {n_rows} rows", result, expected)
    for n_in, n_out, is_normed in ((1280, 3840, True), (5120, 1280, False)):
        weight, bias = random(n_out, n_in) * n_in**-0.5, random(n_out)
        layer = linear.LinearLayer(weight, bias, is_normed=is_normed)
        in_float = linear.LinearLayer(weight.float(), bias.float(), is_normed=is_normed)
        x = random(300, n_in) + 0.5
        result = layer(x)
        yield check(f"{n_in} × {n_out} product of 300 rows", result, in_float.reference(x.float()))
        n_different = sum(not torch.equal(layer(x[:n].contiguous()), result[:n]) for n in (1, 2, 5, 16, 20, 64))
        yield Check(f"the same of fewer rows, differing, {str(dtype).removeprefix('torch.')}", n_different, 0)
    states, gains = random(100, 1280), (random(1280), random(1280))
    expected = norm.reference(states.float().clone(), gains[1].float(), gains[0].float(), gains[1].float())
    yield check("norm", norm.add_and_norm(states, gains[1], *gains), expected)
    projected = random(3, 1500, 2 * n_heads * head_dim)
    caches, references = ([torch.zeros_like(random(n_slots, n_heads, 1500, 64)) for _ in range(2)] for _ in range(2))
    write_kv.write_cross_kv(projected, caches[0], caches[1], slots[:3])
    write_kv.reference(projected, references[0], references[1], slots[:3])
    yield check("write of cross-attention keys", caches[0], references[0])
    rows, exact = fp8.quantize_rows(states, gelu=True), fp8.reference(states, gelu=True)
    exact_values = exact.values.float() * exact.scales
    yield check("fp8 rows", rows.values.float() * rows.scales, exact_values, FP8_TOLERANCE)


def random_hotwords(n_terms: int) -> HotwordTrie:
    choices = np.random.default_rng(5)
    terms = choices.integers(0, 50_000, (n_terms, 3)).tolist()
    return HotwordTrie.build(map(tuple, terms), lambda token: token % 2 == 0)


HOTWORDS = random_hotwords(2_000)
OPTIONS: Sequence[dict[str, object]] = (
    {},
    {"timestamps": False, "prompt": (50, 60, 70)},
    {"temperature": 0.7, "n_candidates": 3},
    {"n_candidates": 4},
    {"max_tokens": 7, "task": "translate"},
    {"temperature": 1.0, "seed": 3},
    {"hotwords": HOTWORDS, "hotword_boost": 0.3},
    {"hotwords": HOTWORDS, "hotword_boost": 1.0},
    {"hotwords": HOTWORDS, "hotword_boost": 0.3, "n_candidates": 3},
)


def check_windows(device: str) -> list[Check]:
    """Random weights in the shape of tiny: windows with all kinds of options in one batch, on the CPU and here."""
    on_cpu, on_gpu = (_decode_windows(name) for name in ("cpu", device))
    n_different = sum(one.tokens != other.tokens for one, other in zip(on_gpu, on_cpu, strict=True))
    errors = [_score_error(one, other) for one, other in zip(on_gpu, on_cpu, strict=True)]
    return [
        Check(f"windows of {len(on_cpu)} whose tokens differ from the CPU's, float32", n_different, 0),
        Check("and their scores", float(np.max(errors)), MAX_SCORE_ERROR),
    ]


def _score_error(one: Decoded, other: Decoded) -> float:
    """The largest difference of the window's score and of its tokens' scores, as far as both have tokens."""
    assert one.token_logprobs is not None
    assert other.token_logprobs is not None
    tokens = zip(one.token_logprobs, other.token_logprobs, strict=False)
    return max(abs(mine - theirs) for mine, theirs in [(one.avg_logprob, other.avg_logprob), *tokens])


def _decode_windows(device: str) -> list[Decoded]:
    engine = random_engine("tiny", EngineSettings(device=device, compute_type="float32", slots=24))
    try:
        pending = [engine.submit(window) for window in _windows()]
        return [each.result() for each in pending]
    finally:
        engine.close()


def _windows() -> Iterator[Window[Decoded]]:
    random = np.random.default_rng(1)
    for number in range(N_WINDOWS):
        samples = random.normal(0, 0.05, (3 + number) * SAMPLE_RATE).astype(np.float32)
        audio = WindowAudio(samples, lead=0, n_mel_frames=samples.size // HOP_LENGTH, mel_peak=None)
        options = {"max_tokens": MAX_TOKENS, "language": "en", "token_logprobs": True}
        yield Window(audio, DecodeParams(**{**options, **OPTIONS[number % len(OPTIONS)]}))  # type: ignore[arg-type]
