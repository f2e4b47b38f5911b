"""Boosted hotwords for an engine that owns its decoding loop: its greedy text is corrected, and decoded on from there.

CTranslate2 takes no bias, but it returns the logits of every step, and a text can be made to begin with given tokens.
Its text is followed up to the first step where a boosted token wins; with that token it is decoded again. A hotword
that does not become whole is taken back in the same way. The rules are those of the torch engine (`host_sampler`), but
every correction costs a decoding of the window, so their number is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.engine.hotword_match import HotwordMatch
from choral.engine.hotword_trie import ROOT
from choral.kernels.hotword_table import MAX_RETURNS, N_TRIED

MAX_CORRECTIONS = 32  # of a window, each of which is a decoding; then hotwords are not boosted

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GreedyText:
    """What the engine writes after some given tokens, with the logits that led to each token of both and to the end."""

    tokens: tuple[int, ...]  # with those that were given, without the end of text
    logits: Sequence[Logits]


@dataclass(frozen=True)
class BoostedText:
    tokens: tuple[int, ...]
    token_logprobs: tuple[float, ...]  # by the model, without the boost
    sum_logprob: float  # with the end of text


@dataclass(frozen=True)
class HotwordBeginning:
    """Where a text took a boosted token, and what it takes instead if the hotword does not become whole."""

    n_tokens: int
    match: HotwordMatch
    others: tuple[int, ...]  # the best first


def boosted_text(generate: Callable[[tuple[int, ...]], GreedyText], match: HotwordMatch, eot: int) -> BoostedText:
    """`generate` decodes the window with these tokens at its beginning."""
    plain, text = generate(()), list[int]()
    beginning: HotwordBeginning | None = None
    n_corrections = n_returns = 0
    while len(text) < len(plain.logits):
        own = plain.tokens[len(text)] if len(text) < len(plain.tokens) else eot
        if n_returns == MAX_RETURNS or n_corrections == MAX_CORRECTIONS:
            token, beginning = own, None
        else:
            tried = best_boosted(plain.logits[len(text)], match)
            token = tried[0]
            if beginning is not None and match.fails(token):
                n_returns += 1
                token, *others = beginning.others
                del text[beginning.n_tokens :]
                match = beginning.match
                beginning = HotwordBeginning(len(text), match, tuple(others)) if others else None
                own = -1  # the text goes on from another token
            else:
                after = match.after(token)
                if after.node == ROOT or after.is_beginning:
                    beginning = None
                if beginning is None and token != own:
                    others = tried[1 : tried.index(own)] if own in tried else tried[1:]
                    beginning = HotwordBeginning(len(text), match, (*others, own))
        match = match.after(token)
        if token == eot:
            break
        text.append(token)
        if token != own:
            n_corrections += 1
            plain = generate(tuple(text))
    return scored(text, plain, eot)


def best_boosted(logits: Logits, match: HotwordMatch) -> list[int]:
    boosted = logits.copy()
    for first, end in match.boosted_nodes:
        tokens = match.trie.tokens[first:end]
        boosted[tokens] = logits[tokens] + match.boost
    best = np.argpartition(-boosted, N_TRIED)[:N_TRIED]
    return [int(token) for token in best[np.argsort(-boosted[best], kind="stable")]]


def scored(text: Sequence[int], plain: GreedyText, eot: int) -> BoostedText:
    logprobs = [
        float(step[token] - np.logaddexp.reduce(step.astype(np.float64)))
        for token, step in zip([*text, eot], plain.logits, strict=False)
    ]
    return BoostedText(tuple(text), tuple(logprobs[: len(text)]), sum(logprobs))
