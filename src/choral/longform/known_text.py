"""A known text as sentences and words, split as the words of a transcript are, so that both can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from choral.longform.words import WordTiming, merge_punctuation
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions

SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*)")
ABBREVIATION = re.compile(r"(?:^|\s)(?:[^\W\d_]|mrs?|mme|ms|dr|st|jr|sr|hr|fr|prof|vs|nr|no)\.\s+$", re.IGNORECASE)
MAX_SENTENCE_CHARACTERS = 1_000  # a text without marks is cut between words


@dataclass(frozen=True)
class TextWord:
    text: str  # with the space before it, as in a transcript
    tokens: tuple[int, ...]
    key: str  # normalised: equal for words that sound the same


def split_sentences(text: str) -> Iterator[str]:
    for line in text.splitlines():
        start = 0
        for end in [match.end() for match in SENTENCE_END.finditer(line)] + [len(line)]:
            sentence = line[start:end]
            if end < len(line) and ABBREVIATION.search(sentence):
                continue
            yield from _cut(sentence.strip())
            start = end


def _cut(sentence: str) -> Iterator[str]:
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        space = sentence.rfind(" ", 1, MAX_SENTENCE_CHARACTERS)
        cut = space if space > 0 else MAX_SENTENCE_CHARACTERS
        yield sentence[:cut]
        sentence = sentence[cut:].strip()
    if sentence:
        yield sentence


def words_of(sentence: str, tokenizer: Tokenizer, language: str, options: TranscribeOptions) -> list[TextWord]:
    """Marks are part of the word before or after them; a sentence of nothing but marks has no words."""
    tokens = tokenizer.encode(" " + sentence)
    texts, groups = tokenizer.split_to_words([*tokens, tokenizer.eot], language)
    units = [WordTiming(text, len(group), 0.0, 0.0, 0.0) for text, group in zip(texts[:-1], groups[:-1], strict=True)]
    merge_punctuation(units, options)
    words: list[TextWord] = []
    held, n_taken = TextWord("", (), ""), 0
    for unit in units:
        unit_tokens = tuple(tokens[n_taken : n_taken + unit.n_tokens])
        n_taken += unit.n_tokens
        key = normalised(unit.text)
        if key:
            words.append(TextWord(held.text + unit.text, held.tokens + unit_tokens, key))
            held = TextWord("", (), "")
        elif words:
            words[-1] = TextWord(words[-1].text + unit.text, words[-1].tokens + unit_tokens, words[-1].key)
        else:
            held = TextWord(held.text + unit.text, held.tokens + unit_tokens, "")
    return words


def normalised(word: str) -> str:
    """Letters and digits only, without case; empty for marks."""
    return "".join(c for c in unicodedata.normalize("NFKC", word).casefold() if c.isalnum() or unicodedata.combining(c))
