"""How long after it was said a word was there: words that were shown, matched with those of the whole recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from choral.bench.live.speaker import Shown


@dataclass(frozen=True)
class TimedWord:
    text: str
    at_s: float  # when it had been sent, or when it was there


def shown_words(pieces: Sequence[Shown]) -> list[TimedWord]:
    """A word is there with its last letter; a turn starts a new one."""
    words: list[TimedWord] = []
    text, at_s, item = "", 0.0, ""
    for piece in pieces:
        for letter in piece.text if piece.item == item else " " + piece.text:
            if letter.isspace():
                words.append(TimedWord(text, at_s))
                text = ""
            elif letter.isalnum():
                text, at_s = text + letter.lower(), piece.at_s
        item = piece.item
    return [word for word in [*words, TimedWord(text, at_s)] if word.text]


def delays_s(said: Sequence[TimedWord], shown: Sequence[TimedWord]) -> list[float]:
    """Of all words that are in both, in order."""
    matcher = SequenceMatcher(None, [word.text for word in said], [word.text for word in shown], autojunk=False)
    return [
        shown[block.b + index].at_s - said[block.a + index].at_s
        for block in matcher.get_matching_blocks()
        for index in range(block.size)
    ]


def plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())
