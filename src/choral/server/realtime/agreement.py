"""What two hypotheses in a row agree on: their first words, as far as they are the same.

Words count as the same whatever their case and the marks between them; taken is how the newer one writes them. Marks
at the end are left for later: whether a sentence ends is known once it goes on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from choral.model.tokenizer import Tokenizer

BROKEN = "\ufffd"
MARKS = "PSZ"  # the classes of punctuation, symbols and spaces


def agreed(older: Sequence[int], newer: Sequence[int], tokenizer: Tokenizer, language: str) -> tuple[int, ...]:
    """The first tokens of the newer one that both mean."""
    words, word_tokens = tokenizer.split_to_words(list(newer), language)
    known = [plain(word) for word in tokenizer.split_to_words(list(older), language)[0]]
    known = [word for word in known if word]
    n_agreed = n_words = 0  # of the newer's words with their marks, and without
    for number, word in enumerate(words, start=1):
        if BROKEN in word:
            break
        if not plain(word):
            continue
        if n_words >= len(known) or plain(word) != known[n_words]:
            break
        n_agreed, n_words = number, n_words + 1
    return tuple(token for tokens in word_tokens[:n_agreed] for token in tokens)


def plain(word: str) -> str:
    """Without case, marks and spaces."""
    return "".join(sign for sign in word.casefold() if unicodedata.category(sign)[0] not in MARKS)
