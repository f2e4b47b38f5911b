"""Encoder self-attention for CPUs: int8 scores, bfloat16 weights and sums, and no exponential.

A bfloat16 has 8 exponent bits above 7 mantissa bits, so the integer 128·log2(w) + 16256, reinterpreted as bfloat16, is
the weight w: exact at powers of two and linear between them, 3% off on average and far less in a mean over 1,500 keys.
Subtracting the mean key changes no softmax weight and centres the scores at zero, so the usual pass for the row
maximum is needed only for heads with very large scores. Windows are processed one at a time, independently.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

QUERY_BLOCK = 500  # with 1,500 keys, 3 MB of scores: they stay in the CPU cache
LEVELS = 127
MIN_AMAX = 1e-30  # lower bound of the largest magnitude, so that zeros are not divided by zero
STEPS_PER_OCTAVE = 128
STEPS_PER_UNIT = STEPS_PER_OCTAVE / math.log(2)
BIAS_STEPS = 127 * STEPS_PER_OCTAVE  # the bfloat16 1.0
# Weights before normalisation: 1,500 times e^75 is within the range of a float.
MAX_STEPS = round(75 * STEPS_PER_UNIT)
ONES_COLUMNS = 8  # appended to the values, so that the product also sums the weights; 8 columns cost as much as one


def int8_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position attends to all positions of its window; float32 [windows, heads, frames, head_dim] in and out."""
    n_windows, n_heads, n_frames, head_dim = q.shape
    # The heads of a frame are adjacent in memory, because they are merged afterwards.
    attended = q.new_empty(n_windows, n_frames, n_heads, head_dim).transpose(1, 2)
    for window in range(n_windows):
        _attend_window(q[window], k[window], v[window], attended[window])
    return attended


def _attend_window(q: Tensor, k: Tensor, v: Tensor, attended: Tensor) -> None:  # each [heads, frames, head_dim]
    n_heads, n_frames, head_dim = q.shape
    centred = k - k.mean(1, keepdim=True)
    queries, query_max = _to_int8(q, dims=(-1,))
    keys, key_max = _to_int8(centred, dims=(1, 2))
    scale = STEPS_PER_UNIT / math.sqrt(head_dim)
    steps = query_max * key_max * (scale / LEVELS**2)
    is_bounded = (_max_norm(q) * _max_norm(centred) * scale < MAX_STEPS).tolist()
    values = v.new_ones(n_heads, n_frames, head_dim + ONES_COLUMNS, dtype=torch.bfloat16)
    values[..., :head_dim] = v
    sums = torch.empty(min(QUERY_BLOCK, n_frames), n_frames, dtype=torch.int32)
    bits = torch.empty(sums.shape, dtype=torch.int16)
    for head in range(n_heads):
        for start in range(0, n_frames, QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            scores = _scores(queries[head, block], keys[head], steps[head, block], sums)
            if not is_bounded[head]:
                scores.sub_(scores.amax(-1, keepdim=True))
            weighted = torch.mm(_weights(scores, bits), values[head])
            torch.div(weighted[:, :head_dim], weighted[:, head_dim : head_dim + 1], out=attended[head, block])


def _to_int8(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(dims, keepdim=True).clamp_(min=MIN_AMAX)
    return (x * (LEVELS / largest)).round_().to(torch.int8), largest


def _max_norm(x: Tensor) -> Tensor:
    """The largest vector norm of each head: the product of two of them bounds every score."""
    return x.square().sum(-1).amax(-1).sqrt()


def _scores(queries: Tensor, keys: Tensor, steps: Tensor, sums: Tensor) -> Tensor:
    """Scores [n, frames] in steps; they overwrite `sums`, because allocating costs more than the arithmetic."""
    sums = sums[: len(queries)]
    torch._int_mm(queries, keys.t(), out=sums)
    return sums.view(torch.float32).copy_(sums).mul_(steps)


def _weights(scores: Tensor, bits: Tensor) -> Tensor:
    """Softmax weights before normalisation."""
    steps = scores.clamp_(-BIAS_STEPS, MAX_STEPS)
    return bits[: len(scores)].copy_(steps).add_(BIAS_STEPS).view(torch.bfloat16)
