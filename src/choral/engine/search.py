"""Search strategies: independent rows, each greedy or sampled, or beams that compete. Plain Python.

A search receives the tokens picked for its rows and returns the rows that continue: the token each is fed next and, for
beams, which row it continues. At the end it lists its candidates, and the best one is kept. State is replaced, never
changed in place, so that a shallow copy can advance and leave the original as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from choral.engine.window import DecodeParams


@dataclass(frozen=True)
class Candidate:
    tokens: tuple[int, ...]  # without the end of text
    sum_logprob: float
    token_logprobs: tuple[float, ...] | None = None  # None: not requested

    @property
    def avg_logprob(self) -> float:
        return self.sum_logprob / (len(self.tokens) + 1)  # the end of text counts

    def score(self, length_penalty: float | None) -> float:
        length = len(self.tokens)
        if length_penalty is not None:
            return self.sum_logprob / float(((5 + length) / 6) ** length_penalty)
        return self.sum_logprob / length if length else -math.inf


@dataclass(frozen=True)
class Next:
    """A row that continues."""

    row: int
    source_row: int  # whose text it extends
    token: int


@dataclass(frozen=True)
class Draw:
    """How the next token of a row is drawn; at temperature 0 it is the argmax."""

    temperature: float
    seed: int  # of the window and the row, within 63 bits
    step: int


class Sampling:
    """Independent rows; each stops at its end of text."""

    def __init__(self, n_rows: int, eot: int) -> None:
        self.eot = eot
        self.rows = list(range(n_rows))  # that continue
        self.texts: list[tuple[int, ...]] = [()] * n_rows
        self.token_logprobs: list[tuple[float, ...]] = [()] * n_rows
        self.sum_logprobs = [0.0] * n_rows

    def advance(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[Next]:
        continued = []
        texts, token_logprobs, sum_logprobs = list(self.texts), list(self.token_logprobs), list(self.sum_logprobs)
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            sum_logprobs[row] += logprob
            if token != self.eot:
                texts[row] = (*texts[row], token)
                token_logprobs[row] = (*token_logprobs[row], logprob)
                continued.append(Next(row, row, token))
        self.rows = [following.row for following in continued]
        self.texts, self.token_logprobs, self.sum_logprobs = texts, token_logprobs, sum_logprobs
        return continued

    def candidates(self) -> list[Candidate]:
        return list(map(Candidate, self.texts, self.sum_logprobs, self.token_logprobs))


class BeamSearch:
    """The `beam_size` most likely texts side by side, until `beam_size * patience` have ended."""

    def __init__(self, beam_size: int, patience: float, eot: int) -> None:
        self.n_rows, self.eot = beam_size, eot
        self.max_ended = max(1, round(beam_size * patience))
        self.rows = list(range(beam_size))
        self.texts: list[tuple[int, ...]] = [()] * beam_size
        self.token_logprobs: list[tuple[float, ...]] = [()] * beam_size
        self.sum_logprobs = [0.0] * beam_size
        self.ended: dict[tuple[int, ...], Candidate] = {}

    @property
    def n_top(self) -> int:
        """How many of the most likely tokens of each row are needed: one of them may be the end of text."""
        return self.n_rows + 1

    def advance(self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> list[Next]:
        scores, sources = self.extend(tokens, logprobs)
        continued: list[tuple[int, ...]] = []
        newly_ended: list[tuple[int, ...]] = []
        for text in sorted(scores, key=scores.__getitem__, reverse=True):
            if len(continued) == self.n_rows:
                break
            (newly_ended if text[-1] == self.eot else continued).append(text)
        self.ended = self.ended | {
            text[:-1]: Candidate(text[:-1], scores[text], self.token_logprobs[sources[text]])
            for text in newly_ended[: max(0, self.max_ended - len(self.ended))]
        }
        self.token_logprobs = [
            (*self.token_logprobs[sources[text]], scores[text] - self.sum_logprobs[sources[text]]) for text in continued
        ]
        self.texts, self.sum_logprobs = continued, [scores[text] for text in continued]
        if len(self.ended) >= self.max_ended:
            return []
        return [Next(row, sources[text], text[-1]) for row, text in enumerate(continued)]

    def extend(
        self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
    ) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], int]]:
        """Every text with its most likely next tokens. Equal texts, as all are at the start, count once."""
        scores: dict[tuple[int, ...], float] = {}
        sources: dict[tuple[int, ...], int] = {}
        for row, (row_tokens, row_logprobs) in enumerate(zip(tokens, logprobs, strict=True)):
            for token, logprob in zip(row_tokens, row_logprobs, strict=True):
                text = (*self.texts[row], token)
                scores[text], sources[text] = self.sum_logprobs[row] + logprob, row
        return scores, sources

    def candidates(self) -> list[Candidate]:
        candidates = dict(self.ended)
        unfinished = map(Candidate, self.texts, self.sum_logprobs, self.token_logprobs)
        for candidate in sorted(unfinished, key=lambda candidate: candidate.sum_logprob, reverse=True):
            if len(candidates) >= self.n_rows:
                break
            candidates[candidate.tokens] = candidate
        return list(candidates.values())


Search = Sampling | BeamSearch


def is_beam_search(params: DecodeParams) -> bool:
    return params.temperature == 0 and params.n_candidates > 1


def search_for(params: DecodeParams, eot: int) -> Search:
    if is_beam_search(params):
        return BeamSearch(params.n_candidates, params.patience, eot)
    return Sampling(params.n_candidates if params.temperature > 0 else 1, eot)


def best_candidate(search: Search, length_penalty: float | None) -> Candidate:
    return max(search.candidates(), key=lambda candidate: candidate.score(length_penalty))
