"""Search strategies: independent rows, each greedy or sampled, or beams that compete. Plain Python.

A search receives the tokens picked for its rows and returns the rows that continue: the token each is fed next and, for
beams, which row it continues. At the end it lists its candidates, and the best one is kept. State is replaced, never
changed in place, so that a shallow copy can advance and leave the original as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from choral.engine.hotword_match import HotwordMatch
from choral.engine.window import DecodeParams


@dataclass(frozen=True)
class Candidate:
    tokens: tuple[int, ...]  # without the end of text
    sum_logprob: float
    token_logprobs: tuple[float, ...] | None = None  # None: not requested
    bonus: float = 0.0  # for its hotwords

    @property
    def avg_logprob(self) -> float:
        return self.sum_logprob / (len(self.tokens) + 1)  # the end of text counts

    def score(self, length_penalty: float | None) -> float:
        length, total = len(self.tokens), self.sum_logprob + self.bonus
        if length_penalty is not None:
            return total / float(((5 + length) / 6) ** length_penalty)
        return total / length if length else -math.inf


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


class BeamExtension(NamedTuple):
    """A beam with a token more."""

    source_row: int
    sum_logprob: float
    match: HotwordMatch | None

    @property
    def rank(self) -> float:
        return self.sum_logprob if self.match is None else self.sum_logprob + self.match.bonus


class Sampling:
    """Independent rows; each stops at its end of text."""

    def __init__(self, n_rows: int, eot: int, match: HotwordMatch | None = None) -> None:
        self.eot = eot
        self.rows = list(range(n_rows))  # that continue
        self.texts: list[tuple[int, ...]] = [()] * n_rows
        self.token_logprobs: list[tuple[float, ...]] = [()] * n_rows
        self.sum_logprobs = [0.0] * n_rows
        self.matches = [match] * n_rows

    def advance(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[Next]:
        continued = []
        texts, token_logprobs, sum_logprobs = list(self.texts), list(self.token_logprobs), list(self.sum_logprobs)
        matches = list(self.matches)
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            sum_logprobs[row] += logprob
            if token != self.eot:
                texts[row] = (*texts[row], token)
                token_logprobs[row] = (*token_logprobs[row], logprob)
                matches[row] = _after(matches[row], token)
                continued.append(Next(row, row, token))
        self.rows = [following.row for following in continued]
        self.texts, self.token_logprobs, self.sum_logprobs = texts, token_logprobs, sum_logprobs
        self.matches = matches
        return continued

    def candidates(self) -> list[Candidate]:
        return list(map(Candidate, self.texts, self.sum_logprobs, self.token_logprobs))


class BeamSearch:
    """The `beam_size` most likely texts side by side, until `beam_size * patience` have ended."""

    def __init__(self, beam_size: int, patience: float, eot: int, match: HotwordMatch | None = None) -> None:
        self.n_rows, self.eot = beam_size, eot
        self.max_ended = max(1, round(beam_size * patience))
        self.rows = list(range(beam_size))
        self.texts: list[tuple[int, ...]] = [()] * beam_size
        self.token_logprobs: list[tuple[float, ...]] = [()] * beam_size
        self.sum_logprobs = [0.0] * beam_size
        self.matches = [match] * beam_size
        self.ended: dict[tuple[int, ...], Candidate] = {}

    @property
    def n_top(self) -> int:
        """How many of the most likely tokens of each row are needed: one of them may be the end of text."""
        return self.n_rows + 1

    def advance(self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> list[Next]:
        extended = self.extend(tokens, logprobs)
        continued: list[tuple[int, ...]] = []
        newly_ended: list[tuple[int, ...]] = []
        for text in sorted(extended, key=lambda text: extended[text].rank, reverse=True):
            if len(continued) == self.n_rows:
                break
            (newly_ended if text[-1] == self.eot else continued).append(text)
        self.ended = self.ended | {
            text[:-1]: self._ended(text[:-1], extended[text])
            for text in newly_ended[: max(0, self.max_ended - len(self.ended))]
        }
        chosen = [extended[text] for text in continued]
        self.token_logprobs = [
            (*self.token_logprobs[each.source_row], each.sum_logprob - self.sum_logprobs[each.source_row])
            for each in chosen
        ]
        self.texts, self.sum_logprobs = continued, [each.sum_logprob for each in chosen]
        self.matches = [each.match for each in chosen]
        if len(self.ended) >= self.max_ended:
            return []
        return [
            Next(row, each.source_row, text[-1]) for row, (text, each) in enumerate(zip(continued, chosen, strict=True))
        ]

    def _ended(self, text: tuple[int, ...], end: BeamExtension) -> Candidate:
        bonus = 0.0 if end.match is None else end.match.bonus
        return Candidate(text, end.sum_logprob, self.token_logprobs[end.source_row], bonus)

    def extend(
        self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
    ) -> dict[tuple[int, ...], BeamExtension]:
        """Every text with its most likely next tokens. Equal texts, as all are at the start, count once."""
        extended: dict[tuple[int, ...], BeamExtension] = {}
        for row, (row_tokens, row_logprobs) in enumerate(zip(tokens, logprobs, strict=True)):
            match, best = self.matches[row], max(row_logprobs)
            for token, logprob in zip(row_tokens, row_logprobs, strict=True):
                text, after = (*self.texts[row], token), _after(match, token, best - logprob)
                extended[text] = BeamExtension(row, self.sum_logprobs[row] + logprob, after)
        return extended

    def candidates(self) -> list[Candidate]:
        candidates = dict(self.ended)
        ends = [_after(match, self.eot) for match in self.matches]
        bonuses = [0.0 if end is None else end.bonus for end in ends]
        unfinished = map(Candidate, self.texts, self.sum_logprobs, self.token_logprobs, bonuses)
        for candidate in sorted(unfinished, key=lambda each: each.sum_logprob + each.bonus, reverse=True):
            if len(candidates) >= self.n_rows:
                break
            candidates[candidate.tokens] = candidate
        return list(candidates.values())


def _after(match: HotwordMatch | None, token: int, gap: float = math.inf) -> HotwordMatch | None:
    return None if match is None else match.after(token, gap)


Search = Sampling | BeamSearch


def is_beam_search(params: DecodeParams) -> bool:
    return params.temperature == 0 and params.n_candidates > 1


def search_for(params: DecodeParams, eot: int, starts_word: Callable[[int], bool]) -> Search:
    match = None
    if params.hotwords is not None and params.temperature == 0:  # samples are not boosted
        match = HotwordMatch(params.hotwords, params.hotword_boost, starts_word)
    if is_beam_search(params):
        return BeamSearch(params.n_candidates, params.patience, eot, match)
    return Sampling(params.n_candidates if params.temperature > 0 else 1, eot, match)


def best_candidate(search: Search, length_penalty: float | None) -> Candidate:
    return max(search.candidates(), key=lambda candidate: candidate.score(length_penalty))
