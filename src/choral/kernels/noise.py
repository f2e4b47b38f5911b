"""Random numbers that depend on neither batch nor device: a hash (splitmix64) of a seed, the step and the token."""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64's constants, as signed numbers: torch has no unsigned 64-bit products, and signed ones wrap alike.
GOLDEN, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
STEPS_APART = 2**20  # more than there are tokens, so that no two steps share a number
SMALLEST, LARGEST = 2.0**-32, 1 - 2.0**-24  # of the uniform numbers, as float32 can tell them from 0 and 1


def gumbel(seeds: Tensor, steps: Tensor, n_vocab: int) -> Tensor:  # [rows], [rows] → [rows, vocab]
    """Adding it to tempered logits and taking the maximum draws from their softmax."""
    counters = steps[:, None] * STEPS_APART + torch.arange(n_vocab, device=seeds.device)
    bits = mixed(mixed(seeds[:, None]) + counters * GOLDEN)
    uniform = (bits & 0xFFFF_FFFF).float() * SMALLEST
    return -torch.log(-torch.log(uniform.clamp(SMALLEST, LARGEST)))


def mixed(bits: Tensor) -> Tensor:
    """splitmix64's finaliser: every bit of the input moves about half the bits of the output."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits = (bits ^ shifted(bits, shift)) * factor
    return bits ^ shifted(bits, 31)


def shifted(bits: Tensor, n: int) -> Tensor:
    """To the right, with zeros coming in: torch's own shift of signed numbers brings in the sign."""
    rest: Tensor = (bits >> n) & (2 ** (64 - n) - 1)
    return rest
