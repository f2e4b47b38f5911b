"""LocalAgreement-2: the words on which two consecutive hypotheses agree are stable."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from choral.model.tokenizer import Tokenizer
from choral.server.realtime.turn import Tokens

REPLACEMENT_CHARACTER = "\ufffd"
MARK_CATEGORIES = "PSZ"  # the Unicode categories of punctuation, symbols and spaces


def local_agreement(older: Sequence[int], newer: Sequence[int], tokenizer: Tokenizer, language: str) -> Tokens:
    """The tokens of the newer hypothesis for its first words that both have, whatever their case and punctuation.

    Punctuation after the last word is left out: whether a sentence ends there is known only when it continues.
    """
    words, word_tokens = tokenizer.split_to_words(list(newer), language)
    older_words = [_normalize(word) for word in tokenizer.split_to_words(list(older), language)[0]]
    older_words = [word for word in older_words if word]
    n_agreed = n_matched = 0  # entries of `words`, and those among them that are not punctuation
    for number, word in enumerate(words, start=1):
        if REPLACEMENT_CHARACTER in word:  # an incomplete character
            break
        normalized = _normalize(word)
        if not normalized:
            continue
        if n_matched >= len(older_words) or normalized != older_words[n_matched]:
            break
        n_agreed, n_matched = number, n_matched + 1
    return tuple(token for tokens in word_tokens[:n_agreed] for token in tokens)


def _normalize(word: str) -> str:
    return "".join(char for char in word.casefold() if unicodedata.category(char)[0] not in MARK_CATEGORIES)
