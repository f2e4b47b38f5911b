"""Matches the words of a known text to those that were heard, for a whole book in near-linear time and memory.

Words that are equal are matched between anchors: phrases that occur once in both texts, of which the longest chain in
the same order is kept, first long phrases over everything, then shorter ones between them; small ranges are solved
exactly. Matches without others around them are coincidences of texts that have nothing in common, and are dropped.
Last, single words between matches are paired if they are similar: those that were misheard or are spelt differently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Pair = tuple[int, int]  # a word of the text, and the word that was heard for it

PHRASE_LENGTHS = (5, 3, 2, 1)
MAX_CELLS = 2_000_000  # of a range that is solved exactly
SUPPORT_WORDS, MIN_SUPPORT = 8, 0.6  # the share of the neighbouring words that must be matched too
MAX_SIMILAR_WORDS = 24  # in a gap, on each side
MAX_REPLACED_WORDS = 3  # between matches, paired one by one, however different they are
MIN_SIMILARITY = 0.7
MAX_MOVED_WORDS = 24  # of a gap that is moved to the beginning of a sentence
MAX_SHIFT_WORDS = 2  # between similar words: a word like this one is somewhere in every longer gap


@dataclass(frozen=True)
class MatchGap:
    """Words of both texts between two matches, or before the first or after the last one."""

    text: range
    heard: range


def match_words(text: Sequence[str], heard: Sequence[str], sentence_starts: Set[int] = frozenset()) -> list[Pair]:
    """The matches in order; the words must be normalised. `sentence_starts` are numbers of words of the text."""
    numbers: dict[str, int] = {}
    text_ids = np.array([numbers.setdefault(word, len(numbers)) for word in text], dtype=np.int32)
    heard_ids = np.array([numbers.setdefault(word, len(numbers)) for word in heard], dtype=np.int32)
    pairs = supported(match_equal(text_ids, heard_ids), len(text))
    pairs += [pair for gap in gaps(pairs, len(text), len(heard)) for pair in match_ends(text_ids, heard_ids, gap)]
    pairs = skip_sentences(sorted(pairs), text, sentence_starts)
    similar = [pair for gap in gaps(pairs, len(text), len(heard)) for pair in match_similar(text, heard, gap)]
    return sorted([*pairs, *similar])


def skip_sentences(pairs: Sequence[Pair], text: Sequence[str], starts: Set[int]) -> list[Pair]:
    """Moves gaps of unheard text to the beginning of a sentence, where the words at their ends allow that.

    A sentence that is not spoken may begin or end like the ones around it, so that its words match as well as theirs.
    """
    heard_for = dict(pairs)

    def moves(leaving: int, entering: int, step: int) -> list[Pair]:
        """The words that leave and enter a gap until it begins with a sentence; none if it cannot."""
        found: list[Pair] = []
        while len(found) < MAX_MOVED_WORDS and leaving in heard_for and text[leaving] == text[entering]:
            found.append((leaving, entering))
            leaving, entering = leaving + step, entering + step
            if (leaving + 1 if step < 0 else entering) in starts:
                return found
        return []

    for (i, j), (k, m) in pairwise(pairs):
        is_gap = m == j + 1 and k > i + 1 and heard_for.get(i) == j and heard_for.get(k) == m
        if is_gap and i + 1 not in starts:
            for leaving, entering in moves(i, k - 1, -1) or moves(k, i + 1, 1):
                heard_for[entering] = heard_for.pop(leaving)
    return sorted(heard_for.items())


def gaps(pairs: Sequence[Pair], n_text: int, n_heard: int) -> Iterator[MatchGap]:
    """What lies between the matches, where there is anything."""
    for (text, heard), (next_text, next_heard) in pairwise([(-1, -1), *pairs, (n_text, n_heard)]):
        gap = MatchGap(range(text + 1, next_text), range(heard + 1, next_heard))
        if gap.text or gap.heard:
            yield gap


def match_equal(text: Ids, heard: Ids) -> list[Pair]:
    pairs: list[Pair] = []
    ranges = [MatchGap(range(len(text)), range(len(heard)))]
    while ranges:
        gap = ranges.pop()
        ends, gap = trim(text, heard, gap)
        pairs += ends
        if not gap.text or not gap.heard:
            continue
        if len(gap.text) * len(gap.heard) <= MAX_CELLS:
            pairs += longest_common(text, heard, gap)
        elif anchors := find_anchors(text, heard, gap):
            pairs += anchors
            bounds = [(gap.text.start - 1, gap.heard.start - 1), *anchors, (gap.text.stop, gap.heard.stop)]
            ranges += [MatchGap(range(i + 1, k), range(j + 1, m)) for (i, j), (k, m) in pairwise(bounds)]
    return sorted(pairs)


def match_ends(text: Ids, heard: Ids, gap: MatchGap) -> list[Pair]:
    """The equal words beside the matches around a gap: they continue what is spoken there."""
    pairs, rest = trim(text, heard, gap)
    has_match_before, has_match_after = gap.text.start > 0, gap.text.stop < len(text)
    return [(i, j) for i, j in pairs if (has_match_before if i < rest.text.start else has_match_after)]


def trim(text: Ids, heard: Ids, gap: MatchGap) -> tuple[list[Pair], MatchGap]:
    """The matches at both ends of a range, and the rest of it."""
    n_most = min(len(gap.text), len(gap.heard))
    first = n_equal(text[gap.text.start :][:n_most], heard[gap.heard.start :][:n_most])
    n_left = n_most - first
    last = n_equal(
        text[gap.text.stop - n_left : gap.text.stop][::-1], heard[gap.heard.stop - n_left : gap.heard.stop][::-1]
    )
    pairs = [*zip(gap.text[:first], gap.heard[:first], strict=True)]
    rest = MatchGap(gap.text[first : len(gap.text) - last], gap.heard[first : len(gap.heard) - last])
    return [*pairs, *zip(gap.text[len(gap.text) - last :], gap.heard[len(gap.heard) - last :], strict=True)], rest


def n_equal(a: Ids, b: Ids) -> int:
    """The length of the common beginning."""
    differs = a != b
    return int(differs.argmax()) if differs.any() else len(a)


def find_anchors(text: Ids, heard: Ids, gap: MatchGap) -> list[Pair]:
    """The first words of the longest phrases that occur once on both sides, as far as they are in the same order."""
    for length in PHRASE_LENGTHS:
        once_text, once_heard = phrases_once(text, gap.text, length), phrases_once(heard, gap.heard, length)
        common = sorted((i, once_heard[phrase]) for phrase, i in once_text.items() if phrase in once_heard)
        if common:
            return longest_increasing(common)
    return []


def phrases_once(ids: Ids, part: range, length: int) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    words = ids[part.start : part.stop].tolist()
    for i, phrase in enumerate(zip(*(words[k:] for k in range(length)), strict=False)):
        found[phrase] = -1 if phrase in found else part.start + i
    return {phrase: i for phrase, i in found.items() if i >= 0}


def longest_increasing(pairs: list[Pair]) -> list[Pair]:
    """The longest chain of pairs, which are sorted by their first number, whose second numbers increase too."""
    tails: list[int] = []  # the smallest last second number of a chain of each length
    tail_pairs: list[int] = []
    before: list[int] = []
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(tails, second)
        before.append(tail_pairs[length - 1] if length else -1)
        tails[length : length + 1] = [second]
        tail_pairs[length : length + 1] = [index]
    chain, index = [], tail_pairs[-1] if tail_pairs else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def longest_common(text: Ids, heard: Ids, gap: MatchGap) -> list[Pair]:
    """The longest common subsequence of a small range, and of several the one with the most neighbouring matches.

    Words of a sentence that is not spoken also occur in those around it, but not as many in a row.
    """
    a, b = text[gap.text.start : gap.text.stop], heard[gap.heard.start : gap.heard.stop]
    weight = min(len(a), len(b)) + 1  # of a match: more than all bonuses for neighbours together
    best = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    matched = np.full_like(best, -1)  # the best with a match of the last two words; -1: they differ
    for i, word in enumerate(a, 1):
        follows = np.where(matched[i - 1, :-1] >= 0, matched[i - 1, :-1] + 1, 0)
        matched[i, 1:] = np.where(b == word, weight + np.maximum(best[i - 1, :-1], follows), -1)
        np.maximum(best[i - 1], matched[i], out=best[i])
        np.maximum.accumulate(best[i], out=best[i])
    pairs: list[Pair] = []
    i, j = len(a), len(b)
    is_matched = False  # the words at i and j must be, because those after them count as their neighbours
    while i and j:
        if is_matched or best[i, j] == matched[i, j]:
            before = int(matched[i - 1, j - 1])
            is_matched = before >= 0 and int(matched[i, j]) == weight + before + 1
            i, j = i - 1, j - 1
            pairs.append((gap.text[i], gap.heard[j]))
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return pairs


def supported(pairs: list[Pair], n_text: int) -> list[Pair]:
    """Those with enough others among the words before them, after them, or on both sides."""
    if not pairs:
        return []
    text, heard = np.array(pairs).T
    numbers = np.arange(len(pairs))
    reach = SUPPORT_WORDS - 1
    after = np.minimum(np.searchsorted(text, text + reach, "right"), np.searchsorted(heard, heard + 2 * reach, "right"))
    before = np.maximum(np.searchsorted(text, text - reach), np.searchsorted(heard, heard - 2 * reach))
    n_needed = MIN_SUPPORT * min(SUPPORT_WORDS, n_text)
    n_needed_around = MIN_SUPPORT * min(2 * SUPPORT_WORDS - 1, n_text)
    is_supported = (
        (after - numbers >= n_needed) | (numbers + 1 - before >= n_needed) | (after - before >= n_needed_around)
    )
    return [pair for pair, keep in zip(pairs, is_supported, strict=True) if keep]


def match_similar(text: Sequence[str], heard: Sequence[str], gap: MatchGap) -> list[Pair]:
    """The pairing of the words in a gap with the greatest similarity."""
    n_text, n_heard = len(gap.text), len(gap.heard)
    has_match_before, has_match_after = gap.text.start > 0, gap.text.stop < len(text)
    if n_text == n_heard <= MAX_REPLACED_WORDS and has_match_before and has_match_after:
        return [*zip(gap.text, gap.heard, strict=True)]
    if max(n_text, n_heard) > MAX_SIMILAR_WORDS:
        return []

    def is_near(i: int, j: int) -> bool:
        """Whether two words are at about the same distance from a match."""
        before, after = abs(i - j), abs((n_text - i) - (n_heard - j))
        return (has_match_before and before <= MAX_SHIFT_WORDS) or (has_match_after and after <= MAX_SHIFT_WORDS)

    best = [[0.0] * (n_heard + 1) for _ in range(n_text + 1)]  # of the words from here on
    scores = [
        [similarity(text[gap.text[i]], heard[gap.heard[j]]) if is_near(i, j) else 0.0 for j in range(n_heard)]
        for i in range(n_text)
    ]
    for i in reversed(range(n_text)):
        for j in reversed(range(n_heard)):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + scores[i][j])
    pairs: list[Pair] = []
    i = j = 0
    while i < n_text and j < n_heard:
        if scores[i][j] and best[i][j] == best[i + 1][j + 1] + scores[i][j]:
            pairs.append((gap.text[i], gap.heard[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def similarity(a: str, b: str) -> float:
    """0 for words that are too different to be the same."""
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    if matcher.real_quick_ratio() < MIN_SIMILARITY:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= MIN_SIMILARITY else 0.0
