"""Word error rate: substitutions, deletions and insertions relative to the words of the reference.

Both texts are normalised as OpenAI does for its published rates: numbers, spelling, punctuation and case do not count;
languages written without spaces are counted by character. The total is over all words, not a mean of clips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from choral.errors import MissingDependency

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue", "bo", "km"})
Normalise = Callable[[str], str]


@dataclass(frozen=True)
class Score:
    n_words: int  # of the reference
    n_substitutions: int = 0
    n_deletions: int = 0
    n_insertions: int = 0

    @property
    def n_errors(self) -> int:
        return self.n_substitutions + self.n_deletions + self.n_insertions

    @property
    def percent(self) -> float:
        """Over 100 where more words were inserted than the reference has."""
        return 100 * self.n_errors / max(self.n_words, 1)

    def __add__(self, other: Score) -> Score:
        return Score(
            self.n_words + other.n_words,
            self.n_substitutions + other.n_substitutions,
            self.n_deletions + other.n_deletions,
            self.n_insertions + other.n_insertions,
        )


def score(reference: str, hypothesis: str, normalise: Normalise) -> Score:
    return compare_words(normalise(reference).split(), normalise(hypothesis).split())


def normaliser(language: str) -> Normalise:
    """Whisper's normaliser for a language."""
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise MissingDependency("word error rates need Whisper's normaliser: pip install 'choral[bench]'") from error
    if language.lower() in ("en", "english"):
        normalise: Normalise = EnglishTextNormalizer()
    else:
        normalise = BasicTextNormalizer(split_letters=language in UNSPACED)
    return normalise


def compare_words(reference: Sequence[str], hypothesis: Sequence[str]) -> Score:
    """The fewest errors, and of the ways to count them the one with the fewest substitutions.

    A substitution costs a little more than the other errors, so one distance has both numbers; deletions and insertions
    follow from the lengths.
    """
    unit = len(reference) + len(hypothesis) + 1  # more than all substitutions together
    n_errors, n_substitutions = divmod(edit_distance(reference, hypothesis, unit, unit + 1), unit)
    n_extra = len(hypothesis) - len(reference)
    n_insertions = (n_errors - n_substitutions + n_extra) // 2
    return Score(len(reference), n_substitutions, n_insertions - n_extra, n_insertions)


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str], gap: int, substitution: int) -> int:
    """The cost of the cheapest edits of words, one row of the table at a time; `gap`: of a deletion or an insertion.

    Insertions chain along a row; with their cost up to each column subtracted, that chain is a running minimum.
    """
    ids = {word: index for index, word in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    hypothesis_ids = np.array([ids[word] for word in hypothesis], dtype=np.int64)
    insertions = gap * np.arange(len(hypothesis) + 1)
    row = insertions.copy()
    for word in reference:
        best = row + gap
        best[1:] = np.minimum(best[1:], row[:-1] + substitution * (hypothesis_ids != ids[word]))
        row = np.minimum.accumulate(best - insertions) + insertions
    return int(row[-1])
