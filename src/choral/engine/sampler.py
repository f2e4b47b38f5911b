"""Picks tokens from logits [rows, vocab], for all rows of a step at once.

A row is greedy (temperature 0) or drawn from the tempered distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.engine.search import Draw
from choral.kernels.gumbel import gumbel


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
        numbers = torch.tensor([[draws[row].seed, draws[row].step] for row in drawn], device=logits.device)
        noise = gumbel(numbers[:, 0], numbers[:, 1], logits.shape[-1])
        tokens[rows] = (logits[rows] / temperatures + noise).argmax(dim=-1)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    token_list, logprob_list = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return Picked([int(token) for token in token_list], logprob_list)


@dataclass(frozen=True)
class TopK:
    """The top_k next tokens of each row, with their log-probabilities, best first."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def top_k(logits: Tensor, n_wanted: int) -> TopK:
    best = torch.log_softmax(logits, dim=-1).topk(n_wanted)
    return TopK(best.indices.tolist(), best.values.tolist())
