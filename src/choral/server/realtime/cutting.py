"""Where a long turn is cut: behind a word that is settled, at the end of a sentence if there is one.

A turn has no longest length, a window has one. What lies before the cut is done; what follows is heard anew, and told
the text before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from choral.longform.words import SENTENCE_ENDS, Timing


@dataclass(frozen=True)
class Cut:
    n_tokens: int  # before it
    at_s: float


def choose_cut(words: Sequence[Timing], n_settled: int, earliest_s: float) -> Cut | None:
    """`words` are those of the piece with their times, `n_settled` how many of their tokens may lie before the cut."""
    cuts: list[Cut] = []
    ends: list[Cut] = []
    n_tokens = 0
    for index, word in enumerate(words):
        n_tokens += word.n_tokens
        if n_tokens > n_settled:
            break
        if word.end < earliest_s:
            continue
        is_end = word.text.strip() in SENTENCE_ENDS
        # A pause is counted to the mark before it: its middle is as far from words as can be.
        at_s = (word.start + word.end) / 2 if is_end else word.end
        cuts.append(Cut(n_tokens, at_s))
        if is_end and index + 1 < len(words):
            ends.append(cuts[-1])
    found = ends or cuts
    return found[-1] if found else None
