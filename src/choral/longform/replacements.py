"""Replaces terms in finished segments: in the text and in the words, whose times stay.

A term is replaced where it stands as whole words, in upper or lower case; the longest that fits wins. The words of a
replaced term become one. A term that is divided between two segments is not found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from choral.transcript import Segment, Word


@dataclass(frozen=True)
class TextEdit:
    start: int
    end: int
    text: str


class Replacements:
    def __init__(self, terms: dict[str, str]) -> None:
        ordered = sorted(terms, key=len, reverse=True)
        self._right = [terms[wrong] for wrong in ordered]
        patterns = [r"\s+".join(map(re.escape, wrong.split())) for wrong in ordered]
        # Not \b, which needs a letter on one side: a term may begin or end with a sign.
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(f'({each})' for each in patterns)})(?!\w)", re.IGNORECASE)

    def apply(self, segment: Segment) -> Segment:
        text = edited(segment.text, self._edits(segment.text), 0)
        words = None if segment.words is None else tuple(self._words(segment.words))
        return replace(segment, text=text, words=words)

    def _edits(self, text: str) -> list[TextEdit]:
        return [
            TextEdit(match.start(), match.end(), self._right[(match.lastindex or 1) - 1])
            for match in self._pattern.finditer(text)
        ]

    def _words(self, words: Sequence[Word]) -> list[Word]:
        text = "".join(word.text for word in words)
        edits = self._edits(text)
        changed: list[Word] = []
        group: list[Word] = []
        start = end = 0
        for word in words:
            group.append(word)
            end += len(word.text)
            if any(edit.start < end < edit.end for edit in edits):
                continue  # the term goes on in the next word
            own = [edit for edit in edits if start <= edit.start < end]
            new = merged(group, edited(text[start:end], own, start)) if own else word
            if not own or new.text.strip():
                changed.append(new)
            group, start = [], end
        return changed


def edited(text: str, edits: Sequence[TextEdit], offset: int) -> str:
    """The text, which starts at this offset, with all edits."""
    for edit in reversed(edits):
        text = text[: edit.start - offset] + edit.text + text[edit.end - offset :]
    return text


def merged(words: Sequence[Word], text: str) -> Word:
    return replace(words[0], text=text, end=words[-1].end, probability=min(word.probability for word in words))
