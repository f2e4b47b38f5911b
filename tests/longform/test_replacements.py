"""Replacements in text and words: whole words, any case, times kept."""

from __future__ import annotations

import pytest

from choral.longform.replacements import Replacements
from choral.transcript import Segment, Word


def segment(*words: str) -> Segment:
    timed = tuple(Word(word, number, number + 0.5, 0.9 - number / 10) for number, word in enumerate(words))
    return Segment(0, 0, 0.0, 9.0, "".join(words), (), 0.0, -0.1, 1.0, 0.0, words=timed)


@pytest.mark.parametrize(
    ("terms", "words", "expected"),
    [
        ({"coral": "Choral"}, (" The", " Coral,", " corals", " CORAL"), (" The", " Choral,", " corals", " Choral")),
        ({"new york": "NYC"}, (" In", " New", " York."), (" In", " NYC.")),
        ({"nyc": "New York"}, (" In", " NYC."), (" In", " New York.")),
        ({"new": "old", "new york": "NYC"}, (" new", " New", " York"), (" old", " NYC")),
        ({"um": ""}, (" um", " yes", " Um,"), (" yes", " ,")),
        ({"c plus plus": "C++", "c++": "C++"}, (" c", " plus", " plus", " c++."), (" C++", " C++.")),
        ({"a": "b", "b": "a"}, (" a-b", " a"), (" b-a", " b")),
        ({"x": r"\1"}, (" x",), (r" \1",)),
        ({"straße": "Strasse"}, (" STRAßE",), (" Strasse",)),
    ],
)
def test_terms_are_replaced(terms: dict[str, str], words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    changed = Replacements(terms).apply(segment(*words))
    assert changed.words is not None
    assert tuple(word.text for word in changed.words) == expected
    assert changed.text.replace(" ", "") == "".join(expected).replace(" ", "")


def test_times_of_words_stay() -> None:
    changed = Replacements({"new york": "NYC"}).apply(segment(" In", " New", " York", " now"))
    assert changed.words == (
        Word(" In", 0, 0.5, 0.9),
        Word(" NYC", 1, 2.5, 0.7),
        Word(" now", 3, 3.5, pytest.approx(0.6)),
    )


def test_segments_without_words_have_their_text_replaced() -> None:
    plain = Segment(0, 0, 0.0, 1.0, " Hello coral.", (), 0.0, -0.1, 1.0, 0.0)
    assert Replacements({"coral": "Choral"}).apply(plain).text == " Hello Choral."
