"""Matching a known text to what was heard: exact where it must be, tolerant of both, and fast for a whole book."""

from __future__ import annotations

import random

import pytest

from choral.longform.known_text import normalised, split_sentences
from choral.longform.text_match import longest_increasing, match_words


def matched(text: str, heard: str) -> list[tuple[str, str]]:
    words, others = text.split(), heard.split()
    return [(words[i], others[j]) for i, j in match_words(words, others)]


def test_words_that_were_misheard_are_paired() -> None:
    text, heard = "the quick brown fox jumps over the lazy dog", "the quick brawn fox jumped over lazy dog"
    expected = "the/the quick/quick brown/brawn fox/fox jumps/jumped over/over lazy/lazy dog/dog"
    assert ["/".join(pair) for pair in matched(text, heard)] == expected.split()


def test_texts_without_anything_in_common_have_no_matches() -> None:
    verse = "the cat sat on the mat and the rain fell on the roof of the house by the sea"
    prose = "a man of the town told us in the end that all of it was for the best"
    assert matched(verse, prose) == []
    assert match_words([], ["a"]) == match_words(["a"], []) == []
    assert match_words(["a"], ["a"]) == [(0, 0)]


def test_missing_and_additional_passages() -> None:
    words = [f"w{i}" for i in range(300)]
    heard = [*words[:100], *(f"x{i}" for i in range(40)), *words[160:]]
    expected = [(i, i) for i in range(100)] + [(i, i - 20) for i in range(160, 300)]
    assert match_words(words, heard) == expected


def test_words_of_an_unspoken_sentence_are_not_those_of_the_sentences_around_it() -> None:
    """Its words occur before and after it too; what is spoken is matched in a row."""
    before = "package refers to the collection of files and derivatives of it created by textual modification"
    unspoken = (
        "standard version refers to such a package if it has not been modified or has been modified in accordance "
        "with the wishes of the copyright holder as specified below"
    )
    after = "copyright holder is whoever is named in the copyright or copyrights for the package"
    heard = f"well {before} {after} thanks".split()
    n_before, n_unspoken = len(before.split()), len(unspoken.split())
    pairs = match_words(f"{before} {unspoken} {after}".split(), heard)
    assert pairs == [(j - 1 if j <= n_before else j - 1 + n_unspoken, j) for j in range(1, len(heard) - 1)]


@pytest.mark.parametrize(
    "unspoken", ["files are covered software", "secondary rules need licence", "secondary software"]
)
def test_an_unspoken_sentence_that_begins_or_ends_like_its_neighbours(unspoken: str) -> None:
    before, after = (
        "it is the work and all contents of covered software",
        "secondary licence means the general public one",
    )
    n_before, n_unspoken = len(before.split()), len(unspoken.split())
    starts = {0, n_before, n_before + n_unspoken}
    heard = f"well {before} {after} thanks".split()
    pairs = match_words(f"{before} {unspoken} {after}".split(), heard, starts)
    assert pairs == [(j - 1 if j <= n_before else j - 1 + n_unspoken, j) for j in range(1, len(heard) - 1)]


def test_a_similar_word_far_away_is_not_the_same_word() -> None:
    text = "we all went home again tis late and dark outside tonight they said"
    heard = "we all went home again this is a long story of other things and late and dark outside tonight they said"
    pairs = match_words(text.split(), heard.split())
    assert (text.split().index("late"), heard.split().index("late")) in pairs
    assert all(abs(j - i) in (0, len(heard.split()) - len(text.split())) for i, j in pairs)


def test_a_book_of_a_hundred_thousand_words() -> None:
    """A chapter of it was not read, and one word in ten was misheard. A quadratic table would have 40 GB."""
    random_state = random.Random(1)
    vocabulary = [f"w{i}" for i in range(20_000)]
    weights = [1 / (i + 1) for i in range(20_000)]
    book = random_state.choices(vocabulary, weights, k=100_000)
    read = [i for i in range(100_000) if not 30_000 <= i < 35_000 and random_state.random() > 0.03]
    heard = [book[i] if random_state.random() > 0.1 else random_state.choice(vocabulary) for i in read]
    pairs = match_words(book, heard)
    n_right = sum(read[j] == i for i, j in pairs)
    assert n_right > 0.97 * len(read)
    assert len(pairs) - n_right < 0.01 * len(read)
    assert not any(30_000 <= i < 35_000 for i, _ in pairs)


def test_longest_increasing() -> None:
    assert longest_increasing([(0, 5), (1, 1), (2, 2), (3, 9), (4, 3)]) == [(1, 1), (2, 2), (4, 3)]
    assert longest_increasing([]) == []


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two!  “Three?” he said.\n\nFour", ["One.", "Two!", "“Three?”", "he said.", "Four"]),
        ("Mr. Dashwood met J. Smith. He left.", ["Mr. Dashwood met J. Smith.", "He left."]),
        ("今日は。元気ですか？はい", ["今日は。", "元気ですか？", "はい"]),
        ("3.14 is pi", ["3.14 is pi"]),
        ("a" * 1500, ["a" * 1000, "a" * 500]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert list(split_sentences(text)) == sentences


def test_normalised_words() -> None:
    assert [normalised(word) for word in (" Don't", "“Ça”,", "ＡＢＣ", "—", "Straße")] == [
        "dont", "ça", "abc", "", "strasse",
    ]  # fmt: skip
