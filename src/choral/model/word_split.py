"""Cutting tokens into words.

A character may be spread over several tokens, so pieces are first joined until they decode; in languages that put
spaces between words, the pieces up to the next space are then one word.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)

Words = tuple[list[str], list[list[int]]]
Decode = Callable[[list[int]], str]


def split(tokens: Sequence[int], language: str | None, eot: int, decode: Decode) -> Words:
    characters = _split_to_characters(tokens, decode)
    return characters if language in WITHOUT_SPACES else _join_up_to_spaces(*characters, eot)


def _split_to_characters(tokens: Sequence[int], decode: Decode) -> Words:
    """The fewest tokens at a time that decode to whole characters, or to what is broken in the whole text too."""
    whole = decode(list(tokens))
    texts: list[str] = []
    groups: list[list[int]] = []
    group: list[int] = []
    offset = 0
    for token in tokens:
        group.append(token)
        text = decode(group)
        if _REPLACEMENT not in text or _is_broken_at(whole, offset + text.index(_REPLACEMENT)):
            texts.append(text)
            groups.append(group)
            group = []
            offset += len(text)
    if group:
        texts.append(decode(group))
        groups.append(group)
    return texts, groups


def _is_broken_at(whole: str, index: int) -> bool:
    return index >= len(whole) or whole[index] == _REPLACEMENT


def _join_up_to_spaces(texts: list[str], groups: list[list[int]], eot: int) -> Words:
    words: list[str] = []
    word_tokens: list[list[int]] = []
    for text, group in zip(texts, groups, strict=True):
        is_special = group[0] >= eot
        is_punctuation = text.strip() in string.punctuation  # an empty text too
        if is_special or is_punctuation or text.startswith(" ") or not words:
            words.append(text)
            word_tokens.append(group)
        else:
            words[-1] += text
            word_tokens[-1] += group
    return words, word_tokens
