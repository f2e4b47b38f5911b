"""Hotwords and replacements as users write them: separators, JSON, limits and messages."""

from __future__ import annotations

import pytest

from choral.errors import UsageError
from choral.options import TranscribeOptions
from choral.term_lists import MAX_HOTWORDS, MAX_LIST_CHARACTERS, MAX_REPLACEMENTS, read_hotwords, read_replacements


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("", ()),
        ("Helstone,  New   York\nHelstone\r\n,Thornton", ("Helstone", "New York", "Thornton")),
        ('["a, b", "c"]', ("a, b", "c")),
        (["Helstone", " Thornton "], ("Helstone", "Thornton")),
        ("東京,大阪", ("東京", "大阪")),
    ],
)
def test_hotwords(value: object, expected: tuple[str, ...]) -> None:
    assert TranscribeOptions(hotwords=value).hotword_terms == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * 201, "a term of 201 characters.*separate terms by commas"),
        ([f"term{number}" for number in range(MAX_HOTWORDS + 1)], "5,001 terms; it must have at most 5,000"),
        ("x" * (MAX_LIST_CHARACTERS + 1), "hotwords has 131,073 characters"),
        ([f"{number:0150}" for number in range(1000)], "150,000 characters; it must have at most 131,072"),
        ('["a",', "starts with .* but is not valid JSON"),
        ("[1]", "hotwords has 1; every term must be a string"),
        ([1], "hotwords is 1; it must be"),
        (["\ud800"], "valid Unicode"),
        ({"a": "b"}, "hotwords is .* it must be a string or a list"),
    ],
)
def test_hotwords_that_cannot_be_read(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TranscribeOptions(hotwords=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ("coral=Choral, new york=NYC\num=", {"coral": "Choral", "new york": "NYC", "um": ""}),
        ('{"a": "b, c"}', {"a": "b, c"}),
        ({"a": "b"}, {"a": "b"}),
    ],
)
def test_replacements(value: object, expected: dict[str, str]) -> None:
    assert TranscribeOptions(replacements=value).replacement_terms == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("coral", "'coral' without what to replace it by: write wrong=right"),
        ("=x", "an empty term"),
        ({"a": 1}, "replacements is 1; it must be a string"),
        ('{"a": 1}', "replacements has 1; every term must be a string"),
        ("{", "not valid JSON"),
        (dict.fromkeys(map(str, range(MAX_REPLACEMENTS + 1)), "x"), "1,001 terms; it must have at most 1,000"),
        ([], "it must be a string or an object of strings or None"),
    ],
)
def test_replacements_that_cannot_be_read(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TranscribeOptions(replacements=value)  # type: ignore[arg-type]


def test_equal_lists_read_alike() -> None:
    assert read_hotwords("a,b") == read_hotwords(["a", "b"])
    assert read_replacements("a=b") == read_replacements({"a": "b"})
