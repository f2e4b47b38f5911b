"""Hotwords: the trie, what a text's matches add to its score, and what they do to the text of a real model."""

from __future__ import annotations

import numpy as np
import pytest

from choral.engine.hotword_match import HotwordMatch
from choral.engine.hotword_trie import MAX_NODES, ROOT, HotwordTrie
from choral.engine.search import BeamSearch, best_candidate

WORD_STARTS = frozenset({1, 2, 3, 9})  # the other tokens continue a word
EOT = 99


def starts_word(token: int) -> bool:
    return token in WORD_STARTS or token == EOT


def match_of(*terms: tuple[int, ...]) -> HotwordMatch:
    return HotwordMatch(HotwordTrie.build(terms, starts_word), 1.0, starts_word)


def bonuses(match: HotwordMatch, *tokens: int) -> list[float]:
    found = []
    for token in tokens:
        match = match.after(token)
        found.append(match.bonus)
    return found


def test_children_lie_side_by_side_by_token() -> None:
    trie = HotwordTrie.build([(2, 5), (1, 7), (1, 6), (2,)], starts_word)
    assert trie.n_nodes == 6
    assert trie.tokens.tolist() == [0, 1, 2, 6, 7, 5]
    assert trie.first_children.tolist() == [1, 3, 5, 6, 6, 6, 6]
    assert [trie.child(ROOT, token) for token in (0, 1, 2, 3)] == [None, 1, 2, None]
    assert (trie.child(1, 7), trie.child(2, 7), trie.child(5, 5)) == (4, None, None)
    assert trie.is_end == [0, 0, 1, 1, 1, 1]
    assert HotwordTrie.checked(trie.packed) == trie


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param((1, 5, 6, 9), [1, 2, 3, 3], id="a whole hotword keeps its bonus"),
        pytest.param((1, 5, 9), [1, 2, 0], id="a part loses it"),
        pytest.param((1, 5, EOT), [1, 2, 0], id="a part at the end of the text loses it"),
        pytest.param((1, 5, 6, 7, 9), [1, 2, 3, 0, 0], id="the beginning of a longer word loses it"),
        pytest.param((1, 5, 1, 5, 6, EOT), [1, 2, 1, 2, 3, 3], id="a part is followed by the whole"),
        pytest.param((2, 3, 9), [1, 2, 1], id="a shorter hotword remains of a longer one"),
        pytest.param((2, 3, 4, 9), [1, 2, 3, 3], id="a hotword of two words"),
        pytest.param((9, 5, 6), [0, 0, 0], id="no hotword begins within a word"),
    ],
)
def test_only_whole_hotwords_keep_a_bonus(tokens: tuple[int, ...], expected: list[float]) -> None:
    assert bonuses(match_of((1, 5, 6), (2,), (2, 3, 4)), *tokens) == expected


def test_beams_are_compared_with_their_hotwords() -> None:
    """The hotword (1, 5) is less likely than 9; a beam that only begins it does not win."""

    def best(*second: tuple[int, float]) -> tuple[int, ...]:
        search = BeamSearch(2, 1.0, EOT, match_of((1, 5)))
        search.advance([[9, 1, 2]] * 2, [[-0.5, -1.2, -9.0]] * 2)
        assert search.texts == [(1,), (9,)]
        search.advance([[token for token, _ in second], [7, 8, 6]], [[p for _, p in second], [-0.5, -9.0, -9.0]])
        search.advance([[EOT, 7, 8]] * 2, [[-0.1, -9.0, -9.0]] * 2)
        chosen = best_candidate(search, None)
        assert chosen.avg_logprob < -0.3  # without the bonus
        return chosen.tokens

    assert best((5, -0.8), (4, -9.0), (3, -9.0)) == (1, 5)
    assert best((3, -0.8), (4, -9.0), (6, -9.0)) == (9, 7)


def broken(change: str) -> bytes:
    values = np.frombuffer(HotwordTrie.build([(1, 5), (2,)], starts_word).packed, np.int32).copy()
    if change == "longer":
        return values.tobytes() + b"\0" * 4
    if change == "cut":
        return values.tobytes()[:-1]
    if change == "large":
        return b"\0" * 4 * (4 * (MAX_NODES + 1) + 1)
    if change == "loop":
        values[1] = values[2] = 1
    elif change == "outside":
        values[4] = 77
    elif change == "negative":
        values[0] = -5
    return values.tobytes() if change != "empty" else b""


@pytest.mark.parametrize("change", ["longer", "cut", "large", "loop", "outside", "negative", "empty"])
def test_tries_of_other_processes_are_checked(change: str) -> None:
    with pytest.raises(ValueError, match="hotwords"):
        HotwordTrie.checked(broken(change))
