"""Picks tokens from logits [rows, vocab], for all rows of a step at once.

A row is greedy (temperature 0) or drawn from the tempered distribution. Draws come from a hash (splitmix64) of the
row's seed, the step and the token, so they depend neither on the batch nor on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.engine.search import Draw

# splitmix64's constants, as signed numbers: torch has no unsigned 64-bit products, and signed ones wrap alike.
GOLDEN, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
STEPS_APART = 2**20  # more than there are tokens, so that no two steps share a number
SMALLEST, LARGEST = 2.0**-32, 1 - 2.0**-24  # of the uniform numbers, as float32 can tell them from 0 and 1


@dataclass(frozen=True)
class Picked:
    tokens: list[int]
    logprobs: list[float]


def pick(logits: Tensor, draws: Sequence[Draw]) -> Picked:
    """One token a row, with its log-probability, in one read-back."""
    tokens = logits.argmax(dim=-1)
    drawn = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        temperatures = torch.tensor([[draws[row].temperature] for row in drawn], device=logits.device)
        noise = gumbel([draws[row] for row in drawn], logits.shape[-1], logits.device)
        # Adding Gumbel noise and taking the maximum draws from the softmax.
        tokens[rows] = (logits[rows] / temperatures + noise).argmax(dim=-1)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    token_list, logprob_list = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return Picked([int(token) for token in token_list], logprob_list)


def gumbel(draws: Sequence[Draw], n_vocab: int, device: torch.device) -> Tensor:  # [draws, vocab]
    numbers = torch.tensor([[draw.seed, draw.step * STEPS_APART] for draw in draws], device=device)
    counters = numbers[:, 1:] + torch.arange(n_vocab, device=device)
    bits = mixed(mixed(numbers[:, :1]) + counters * GOLDEN)
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


@dataclass(frozen=True)
class Likeliest:
    """The likeliest next tokens of each row, with their log-probabilities, best first."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def likeliest(logits: Tensor, n_wanted: int) -> Likeliest:
    best = torch.log_softmax(logits, dim=-1).topk(n_wanted)
    return Likeliest(best.indices.tolist(), best.values.tolist())
