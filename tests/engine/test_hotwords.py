"""Hotwords: the trie, what a text's matches add to its score, and what they do to the text of a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import choral
from choral.engine.ct2_hotwords import GreedyText, boosted_text
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


class ScriptedModel:
    """An engine that owns its loop: greedy by a table of log-probabilities after the last token."""

    def __init__(self, table: dict[int, dict[int, float]]) -> None:
        self.table, self.n_calls = table, 0

    def logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        row = np.full(100, -50.0, np.float32)
        for token, logit in self.table.get(tokens[-1] if tokens else 0, {EOT: 0.0}).items():
            row[token] = logit
        return row

    def generate(self, tokens: tuple[int, ...]) -> GreedyText:
        self.n_calls += 1
        rows = [self.logits(tokens[:n]) for n in range(len(tokens))]
        while True:
            rows.append(self.logits(tokens))
            token = int(rows[-1].argmax())
            if token == EOT:
                return GreedyText(tokens, rows)
            tokens = (*tokens, token)


@pytest.mark.parametrize(
    ("terms", "expected", "n_calls"),
    [
        pytest.param([], (9, 8), 1, id="no hotword of this text"),
        pytest.param([(1, 5)], (1, 5), 2, id="a hotword that is nearly as likely, which ends the text"),
        pytest.param([(1, 6)], (9, 8), 3, id="its second token is too unlikely: it is taken back"),
        pytest.param([(1, 6), (2, 7)], (2, 7), 3, id="another one is tried before the model's own token"),
        pytest.param([(8,)], (9, 8), 1, id="the model writes it anyway"),
    ],
)
def test_the_text_of_an_engine_that_takes_no_boost_is_corrected(
    terms: list[tuple[int, ...]], expected: tuple[int, ...], n_calls: int
) -> None:
    model = ScriptedModel(
        {0: {9: 0.0, 1: -0.5, 2: -0.6}, 9: {8: 0.0}, 8: {EOT: 0.0}, 1: {5: 0.0, 6: -9.0}, 2: {7: 0.0, 6: -1.0}}
    )
    found = boosted_text(model.generate, match_of((3,), *terms), EOT)
    assert (found.tokens, model.n_calls) == (expected, n_calls)
    assert len(found.token_logprobs) == len(expected)
    assert max(found.token_logprobs) <= 0
    assert found.sum_logprob <= sum(found.token_logprobs)


def test_all_engines_write_the_same_hotwords(tiny_en_pt: Path, jfk: Path) -> None:
    others = [f"Zarkon{number}" for number in range(200)]
    texts = []
    for engine in ("torch", "ctranslate2"):
        with choral.load(tiny_en_pt, device="cpu", engine=engine, compute_type="float32") as model:  # type: ignore[arg-type]
            found = model.transcribe(jfk, hotwords=["Americas", *others], hotword_boost=8, temperature=0)
            assert found.warnings == ()
            texts.append(found.text)
            beams = model.transcribe(jfk, hotwords=["Americas"], hotword_boost=8, temperature=0, beam_size=2)
            assert ["with beams" in warning for warning in beams.warnings] == [True] * (engine == "ctranslate2")
    assert texts[0] == texts[1]
    assert "fellow Americas" in texts[0]


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
