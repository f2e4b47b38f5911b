"""Lists of terms as users write them: hotwords, and replacements of one term by another. All are bounded.

A text has terms separated by commas or new lines, or is JSON, which allows commas in terms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from choral.errors import UsageError

MAX_LIST_CHARACTERS = 131_072  # of all terms
MAX_TERM_CHARACTERS = 200
MAX_HOTWORDS = 5_000
MAX_REPLACEMENTS = 1_000
MAX_SHOWN_CHARACTERS = 40
_SEPARATOR = re.compile(r"[,\n\r]")


def read_hotwords(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """The terms, each once, with single spaces."""
    terms = _split("hotwords", value, "[", list) if isinstance(value, str) else (value or ())
    cleaned = (_clean("hotwords", term) for term in terms)
    unique = tuple(dict.fromkeys(term for term in cleaned if term))
    _check_count("hotwords", len(unique), MAX_HOTWORDS)
    _check_total("hotwords", sum(map(len, unique)))
    return unique


def read_replacements(value: str | Mapping[str, str] | None) -> dict[str, str]:
    """What to replace, and by what, which may be nothing."""
    if isinstance(value, str):
        value = _split_pairs(value)
    pairs = {_clean("replacements", wrong): _clean("replacements", right) for wrong, right in (value or {}).items()}
    if "" in pairs:
        raise UsageError("replacements has an empty term: write wrong=right, and wrong must not be empty")
    _check_count("replacements", len(pairs), MAX_REPLACEMENTS)
    return pairs


def _split_pairs(text: str) -> Mapping[str, str]:
    found = _split("replacements", text, "{", dict)
    if isinstance(found, dict):
        return found
    pairs = [part.partition("=") for part in found if part.strip()]
    for wrong, equals, _ in pairs:
        if not equals:
            raise UsageError(f"replacements has {_shown(wrong)} without what to replace it by: write wrong=right")
    return {wrong: right for wrong, _, right in pairs}


def _split(name: str, text: str, bracket: str, kind: type) -> Any:
    """The JSON value of a text that starts with this bracket, else its parts."""
    if not text.lstrip().startswith(bracket):
        return _SEPARATOR.split(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} starts with {bracket} but is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise UsageError(f"{name} is JSON, but not {'a list' if kind is list else 'an object'} of strings")
    return value


def _clean(name: str, term: object) -> str:
    if not isinstance(term, str):
        raise UsageError(f"{name} has {_shown(term)}; every term must be a string")
    if any("\ud800" <= letter <= "\udfff" for letter in term):
        raise UsageError(f"{name} has {_shown(term)}; it must be valid Unicode: it has half of a surrogate pair")
    cleaned = " ".join(term.split())
    if len(cleaned) > MAX_TERM_CHARACTERS:
        raise UsageError(
            f"{name} has a term of {len(cleaned):,} characters, {_shown(cleaned)}; it must have at most "
            f"{MAX_TERM_CHARACTERS}: separate terms by commas or new lines"
        )
    return cleaned


def _check_count(name: str, n_terms: int, max_terms: int) -> None:
    if n_terms > max_terms:
        raise UsageError(f"{name} has {n_terms:,} terms; it must have at most {max_terms:,}")


def _check_total(name: str, n_characters: int) -> None:
    if n_characters > MAX_LIST_CHARACTERS:
        raise UsageError(f"{name} has {n_characters:,} characters; it must have at most {MAX_LIST_CHARACTERS:,}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"
