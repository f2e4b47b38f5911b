"""A checkpoint's tokenizer for libraries that want Hugging Face's `tokenizers`, made without the network.

Choral's vocabularies are in the order of their ranks, as tiktoken's; `tokenizers` wants the merge that made each token.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from choral.model.weights.vocabulary import _BYTE_OF_CHARACTER

CHARACTER_OF_BYTE = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}


def tokenizer_json(checkpoint: Checkpoint) -> bytes:
    """The content of a tokenizer.json."""
    text: bytes = make_tokenizer(checkpoint).to_str().encode()
    return text


def make_tokenizer(checkpoint: Checkpoint) -> Any:
    package: Any = importlib.import_module("tokenizers")
    text, special = split_vocabulary(checkpoint)
    vocabulary = {own: index for index, own in enumerate(text)}
    tokenizer = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=merges(text)))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    tokenizer.add_special_tokens([package.AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


def split_vocabulary(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """The tokens of text, a character a byte, and the names of the special ones, both in order of their ids."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    text = [tokenizer._encoding.decode_single_token_bytes(token) for token in range(tokenizer.n_text)]
    special = [tokenizer.decode_with_timestamps([token]) for token in range(tokenizer.n_text, tokenizer.n_vocab)]
    return ["".join(CHARACTER_OF_BYTE[byte] for byte in token) for token in text], special


def merges(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """For each token of more than one byte the two that it was made of."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pairs = (last_merge(token, ranks) for token in tokens if len(token) > 1)
    return [pair for pair in pairs if pair is not None]


def last_merge(token: str, ranks: Mapping[str, int]) -> tuple[str, str] | None:
    """Merges as the tokenizer would, with what ranks below the token; None where that does not lead to two parts."""
    parts = list(token)
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        first = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[first] >= ranks[token]:
            return None
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]
