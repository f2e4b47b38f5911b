"""How the next token is chosen: the likeliest, a random one, or the best of several beams.

A search takes the logits [rows, vocab] of a step, after the rules, and answers with a `Choice`: the token of each
row and, for beams, which row each new row continues. At the end it names its candidates; the best is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from choral.engine.window import Decode


@dataclass(frozen=True)
class Candidate:
    tokens: tuple[int, ...]  # without the end of text
    sum_logprob: float

    @property
    def avg_logprob(self) -> float:
        return self.sum_logprob / (len(self.tokens) + 1)  # the end of text counts

    def score(self, length_penalty: float | None) -> float:
        length = len(self.tokens)
        if length_penalty is not None:
            return self.sum_logprob / float(((5 + length) / 6) ** length_penalty)
        return self.sum_logprob / length if length else -math.inf


@dataclass(frozen=True)
class Choice:
    tokens: Tensor  # [rows]
    source_rows: Tensor | None  # None: every row goes on as itself
    is_complete: bool


class Search(Protocol):
    n_rows: int

    def advance(self, logits: Tensor) -> Choice: ...

    def candidates(self) -> list[Candidate]: ...


class Sampling:
    """Independent rows, each greedy (temperature 0) or drawn from the tempered distribution."""

    def __init__(self, n_rows: int, temperature: float, eot: int, seed: int, device: torch.device) -> None:
        self.n_rows, self.temperature, self.eot = n_rows, temperature, eot
        # On the CPU, so that the draws are the same on every device.
        self.generator = torch.Generator().manual_seed(seed)
        self.sum_logprobs = torch.zeros(n_rows, device=device)
        self.ended = torch.zeros(n_rows, dtype=torch.bool, device=device)
        self.steps: list[Tensor] = []

    def advance(self, logits: Tensor) -> Choice:
        tokens = self.draw(logits)
        logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
        self.sum_logprobs += logprobs.masked_fill(self.ended, 0.0)
        tokens = tokens.masked_fill(self.ended, self.eot)
        self.ended = tokens == self.eot
        self.steps.append(tokens)
        return Choice(tokens, None, bool(self.ended.all()))

    def draw(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        # Adding Gumbel noise and taking the maximum draws from the softmax.
        uniform = torch.rand(logits.shape, generator=self.generator).clamp_min_(1e-20)
        gumbel = -torch.log(-torch.log(uniform))
        return (logits / self.temperature + gumbel.to(logits.device)).argmax(dim=-1)

    def candidates(self) -> list[Candidate]:
        rows = torch.stack(self.steps, dim=1).tolist() if self.steps else [[]] * self.n_rows
        texts = [tuple(row[: row.index(self.eot)] if self.eot in row else row) for row in rows]
        return [Candidate(*pair) for pair in zip(texts, self.sum_logprobs.tolist(), strict=True)]


class BeamSearch:
    """The `beam_size` likeliest texts side by side, until `beam_size * patience` have ended."""

    def __init__(self, beam_size: int, patience: float, eot: int, device: torch.device) -> None:
        self.n_rows, self.eot = beam_size, eot
        self.n_wanted = max(1, round(beam_size * patience))
        self.sum_logprobs = torch.zeros(beam_size, device=device)
        self.texts: list[tuple[int, ...]] = [()] * beam_size
        self.ended: dict[tuple[int, ...], float] = {}

    def advance(self, logits: Tensor) -> Choice:
        scores, sources = self.extend(logits)
        going_on: list[tuple[int, ...]] = []
        newly_ended: list[tuple[int, ...]] = []
        for text in sorted(scores, key=scores.__getitem__, reverse=True):
            if len(going_on) == self.n_rows:
                break
            (newly_ended if text[-1] == self.eot else going_on).append(text)
        for text in newly_ended[: max(0, self.n_wanted - len(self.ended))]:
            self.ended[text[:-1]] = scores[text]

        self.texts = going_on
        self.sum_logprobs = logits.new_tensor([scores[text] for text in going_on])
        tokens = torch.tensor([text[-1] for text in going_on], device=logits.device)
        source_rows = torch.tensor([sources[text] for text in going_on], device=logits.device)
        return Choice(tokens, source_rows, len(self.ended) >= self.n_wanted)

    def extend(self, logits: Tensor) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], int]]:
        """Every text with its likeliest next tokens. Equal texts, as all are at the start, count once."""
        best = torch.log_softmax(logits, dim=-1).topk(self.n_rows + 1)
        sums = (self.sum_logprobs[:, None] + best.values).tolist()
        scores: dict[tuple[int, ...], float] = {}
        sources: dict[tuple[int, ...], int] = {}
        for row, (tokens, row_sums) in enumerate(zip(best.indices.tolist(), sums, strict=True)):
            for token, score in zip(tokens, row_sums, strict=True):
                text = (*self.texts[row], token)
                scores[text], sources[text] = score, row
        return scores, sources

    def candidates(self) -> list[Candidate]:
        candidates = dict(self.ended)
        unfinished = zip(self.sum_logprobs.tolist(), self.texts, strict=True)
        for score, text in sorted(unfinished, key=lambda pair: pair[0], reverse=True):
            if len(candidates) >= self.n_rows:
                break
            candidates[text] = score
        return [Candidate(text, score) for text, score in candidates.items()]


def search_for(work: Decode, eot: int, seed: int, device: torch.device) -> Search:
    if work.temperature == 0 and work.n_candidates > 1:
        return BeamSearch(work.n_candidates, work.patience, eot, device)
    n_rows = work.n_candidates if work.temperature > 0 else 1
    return Sampling(n_rows, work.temperature, eot, seed, device)


def best_candidate(search: Search, length_penalty: float | None) -> Candidate:
    return max(search.candidates(), key=lambda candidate: candidate.score(length_penalty))
