"""Gumbel noise that depends on neither batch nor device: splitmix64 of a row's seed, the step and the token.

Adding it to tempered logits and taking the maximum draws from their softmax. `kernels.sample` computes the same in
Triton; this module needs torch only.
"""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64's constants as signed numbers: torch has no unsigned 64-bit multiply, and signed products wrap alike.
GOLDEN, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
STEP_STRIDE = 2**20  # more than there are tokens, so that no two steps share a counter
MIN_UNIFORM, MAX_UNIFORM = 2.0**-32, 1 - 2.0**-24  # float32 distinguishes these from 0 and 1


def gumbel(seeds: Tensor, steps: Tensor, n_vocab: int) -> Tensor:  # [rows], [rows] → [rows, vocab]
    counters = steps[:, None] * STEP_STRIDE + torch.arange(n_vocab, device=seeds.device)
    bits = mix(mix(seeds[:, None]) + counters * GOLDEN)
    uniform = (bits & 0xFFFF_FFFF).float() * MIN_UNIFORM
    return -torch.log(-torch.log(uniform.clamp(MIN_UNIFORM, MAX_UNIFORM)))


def mix(bits: Tensor) -> Tensor:
    """splitmix64's finaliser: every input bit flips about half of the output bits."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits = (bits ^ shift_right(bits, shift)) * factor
    return bits ^ shift_right(bits, 31)


def shift_right(bits: Tensor, n: int) -> Tensor:
    """Logical shift: torch's own shift of signed numbers extends the sign."""
    rest: Tensor = (bits >> n) & (2 ** (64 - n) - 1)
    return rest
