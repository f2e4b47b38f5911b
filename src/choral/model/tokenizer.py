"""Encodes and decodes text, names Whisper's special tokens, and splits tokens into words.

Choral ships the two vocabularies of OpenAI's models; a model file with its own vocabulary uses that. Special tokens
follow the text tokens in a fixed order: end, start, languages, tasks, markers, and a timestamp for every 20 ms.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from choral.errors import ModelCorrupt, UsageError
from choral.model import languages
from choral.model.dims import ModelDims
from choral.options import Task

if TYPE_CHECKING:
    import tiktoken

N_TIMESTAMPS = 1_501  # 0.00 to 30.00
TIMESTAMP_STEP_S = 0.02
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages written without spaces between words
_REPLACEMENT = "\ufffd"  # decodes from bytes that are not (yet) a whole character
_AFTER_LANGUAGES = (
    "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
# GPT-2's pre-tokenizer: contractions, words, numbers, punctuation and spaces are merged separately.
_PRE_TOKENS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

# Used in transcripts for sounds other than speech, for speakers and for music.
_BRACKETS_AND_SIGNS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))",
    "[[", "]]", "{{", "}}", "♪♪", "♪♪♪",
)  # fmt: skip
_NOTES = "♩♪♫♬♭♮♯"
_CODE_OF_OBSOLETE_CODE = {"iw": "he"}  # Hebrew in Hugging Face's first vocabularies


@dataclass(frozen=True)
class Tokenizer:
    n_vocab: int
    n_text: int  # number of text tokens; special tokens follow
    languages: tuple[str, ...]  # codes, in the order of their tokens; English-only models: en alone
    is_multilingual: bool
    vocabulary: tuple[bytes, ...] | None = field(repr=False, compare=False)  # None: one that Choral ships
    _n_language_tokens: int
    _encoding: tiktoken.Encoding

    @classmethod
    def for_checkpoint(cls, dims: ModelDims, vocabulary: Sequence[bytes] | None = None) -> Tokenizer:
        """The tokenizer of a model with these dims and, where its file has one, this vocabulary."""
        return _build(dims.n_vocab, dims.is_multilingual, None if vocabulary is None else tuple(vocabulary))

    @property
    def eot(self) -> int:
        return self.n_text

    @property
    def sot(self) -> int:
        return self.n_text + 1

    @property
    def translate(self) -> int:
        return self.sot + 1 + self._n_language_tokens

    @property
    def transcribe(self) -> int:
        return self.translate + 1

    @property
    def sot_lm(self) -> int:
        return self.translate + 2

    @property
    def sot_prev(self) -> int:
        return self.translate + 3

    @property
    def no_speech(self) -> int:
        return self.translate + 4

    @property
    def no_timestamps(self) -> int:
        return self.translate + 5

    @property
    def timestamp_begin(self) -> int:
        return self.translate + 6

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; names of special tokens in it are encoded as plain text."""
        return self._encoding.encode(text, disallowed_special=())

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without timestamps; invalid UTF-8 becomes U+FFFD."""
        return self._encoding.decode([token for token in tokens if token < self.timestamp_begin])

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        return self._encoding.decode(list(tokens))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a text token, or the name of a special token."""
        return self._encoding.decode_single_token_bytes(token)

    def starts_word(self, token: int) -> bool:
        """Whether a token cannot continue the word before it. Other scripts than Latin count as not continuing it."""
        return token >= self.eot or not self.token_bytes(token)[:1].isalnum()

    @cached_property
    def language_tokens(self) -> tuple[int, ...]:
        return tuple(range(self.sot + 1, self.sot + 1 + len(self.languages)))

    def language_token(self, code: str) -> int:
        if code in self.languages:
            return self.sot + 1 + self.languages.index(code)
        known = "only English" if not self.is_multilingual else f"{len(self.languages)} languages, not this one"
        name = languages.NAMES.get(code, code)
        raise UsageError(f"this model cannot be used for {name}: it knows {known}. Choose another model or language.")

    def sot_sequence(self, language: str | None, task: Task) -> tuple[int, ...]:
        """The tokens that start a transcript; for a multilingual model, no language means English."""
        if not self.is_multilingual:
            return (self.sot,)
        task_token = self.translate if task == "translate" else self.transcribe
        return (self.sot, self.language_token(language or "en"), task_token)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Tokens of symbols that are not spoken: brackets, speaker marks, musical notes; not plain punctuation."""
        non_speech = {self.encode(" -")[0], self.encode(" '")[0]}  # allowed within words
        for sign in (*_BRACKETS_AND_SIGNS, *_NOTES):
            for tokens in (self.encode(sign), self.encode(f" {sign}")):
                # The first token of a multi-token note begins only such symbols.
                if len(tokens) == 1 or sign in _NOTES:
                    non_speech.add(tokens[0])
        return tuple(sorted(non_speech))

    def suppressed(self, option: Sequence[int]) -> tuple[int, ...]:
        """The tokens to suppress: those of the option, where -1 means `non_speech_tokens`, task tokens and padding."""
        for token in option:
            if not -1 <= token < self.n_vocab:
                raise UsageError(
                    f"suppress_tokens has {token}; this model's tokens are 0 to {self.n_vocab - 1}, "
                    "and -1 stands for most special characters"
                )
        always = (self.transcribe, self.translate, self.sot, self.sot_prev, self.sot_lm, self.no_speech)
        padding = range(self.timestamp_begin + N_TIMESTAMPS, self.n_vocab)
        chosen = {token for token in option if token >= 0} | {*always, *padding}
        return tuple(sorted(chosen.union(self.non_speech_tokens) if -1 in option else chosen))

    def split_to_words(self, tokens: Sequence[int], language: str | None) -> tuple[list[str], list[list[int]]]:
        """The words and the tokens of each; in languages written without spaces, the characters."""
        characters = _split_to_characters(tokens, self.decode_with_timestamps)
        return characters if language in WITHOUT_SPACES else _join_up_to_spaces(*characters, self.eot)


def _split_to_characters(
    tokens: Sequence[int], decode: Callable[[list[int]], str]
) -> tuple[list[str], list[list[int]]]:
    """Smallest groups of tokens that decode to whole characters, or to bytes that are invalid in the whole text too."""
    whole = decode(list(tokens))
    texts: list[str] = []
    groups: list[list[int]] = []
    group: list[int] = []
    offset = 0
    for token in tokens:
        group.append(token)
        text = decode(group)
        if _REPLACEMENT not in text or _is_invalid_at(whole, offset + text.index(_REPLACEMENT)):
            texts.append(text)
            groups.append(group)
            group = []
            offset += len(text)
    if group:
        texts.append(decode(group))
        groups.append(group)
    return texts, groups


def _is_invalid_at(whole: str, index: int) -> bool:
    return index >= len(whole) or whole[index] == _REPLACEMENT


def _join_up_to_spaces(texts: list[str], groups: list[list[int]], eot: int) -> tuple[list[str], list[list[int]]]:
    words: list[str] = []
    word_tokens: list[list[int]] = []
    for text, group in zip(texts, groups, strict=True):
        is_special = group[0] >= eot
        is_punctuation = text.strip() in string.punctuation  # true for an empty text too
        if is_special or is_punctuation or text.startswith(" ") or not words:
            words.append(text)
            word_tokens.append(group)
        else:
            words[-1] += text
            word_tokens[-1] += group
    return words, word_tokens


@lru_cache(maxsize=8)
def _build(n_vocab: int, is_multilingual: bool, vocabulary: tuple[bytes, ...] | None) -> Tokenizer:
    shipped = _shipped("multilingual" if is_multilingual else "gpt2")
    text = shipped if vocabulary is None else _text_tokens(vocabulary)
    codes = _language_codes(vocabulary, len(text)) if vocabulary is not None else None
    if codes is None:
        n_languages = n_vocab - len(text) - 2 - len(_AFTER_LANGUAGES) - N_TIMESTAMPS
        codes = languages.CODES[: max(n_languages, 0)]
    if not codes or len(text) + 2 + len(codes) + len(_AFTER_LANGUAGES) + N_TIMESTAMPS > n_vocab:
        raise ModelCorrupt(
            f"the model has {n_vocab} tokens: too few for its {len(text)} tokens of text and Whisper's special ones. "
            "Its vocabulary does not belong to it: fetch the model again."
        )
    return Tokenizer(
        n_vocab=n_vocab,
        n_text=len(text),
        languages=codes if is_multilingual else ("en",),
        is_multilingual=is_multilingual,
        vocabulary=vocabulary,
        _n_language_tokens=len(codes),
        _encoding=_encoding(text, codes, n_vocab),
    )


@lru_cache(maxsize=8)
def _encoding(text: tuple[bytes, ...], codes: tuple[str, ...], n_vocab: int) -> tiktoken.Encoding:
    import tiktoken

    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in codes), *_AFTER_LANGUAGES]
    names += [f"<|{index * TIMESTAMP_STEP_S:.2f}|>" for index in range(N_TIMESTAMPS)]
    # Some models pad their vocabulary to a round number; the padding needs names to be decodable.
    names += [f"<|unused{token}|>" for token in range(len(text) + len(names), n_vocab)]
    return tiktoken.Encoding(
        name="whisper",
        pat_str=_PRE_TOKENS,
        mergeable_ranks={token: rank for rank, token in enumerate(text)},
        special_tokens={name: len(text) + index for index, name in enumerate(names)},
    )


@lru_cache(maxsize=2)
def _shipped(name: str) -> tuple[bytes, ...]:
    lines = resources.files("choral").joinpath(f"assets/{name}.tiktoken").read_bytes().splitlines()
    return tuple(base64.b64decode(line.split()[0]) for line in lines if line)


def _text_tokens(vocabulary: tuple[bytes, ...]) -> tuple[bytes, ...]:
    end = vocabulary.index(b"<|endoftext|>") if b"<|endoftext|>" in vocabulary else len(vocabulary)
    text = vocabulary[:end]
    if len(set(text)) != len(text) or not {bytes([byte]) for byte in range(256)}.issubset(text):
        raise ModelCorrupt("the model's vocabulary has a token twice or lacks single bytes: fetch the model again.")
    return text


def _language_codes(vocabulary: tuple[bytes, ...], n_text: int) -> tuple[str, ...] | None:
    """The language codes in the vocabulary, or None where it has only text tokens."""
    special = vocabulary[n_text:]
    if b"<|translate|>" not in special:
        return None
    named = [token.decode("utf-8", "replace") for token in special[: special.index(b"<|translate|>")]]
    is_in_order = len(named) > 2 and named[:2] == ["<|endoftext|>", "<|startoftranscript|>"]
    if not is_in_order or special[len(named) + 1 : len(named) + 2] != (b"<|transcribe|>",):
        raise ModelCorrupt("the model's vocabulary has special tokens in an order that Whisper does not use.")
    codes = (name.removeprefix("<|").removesuffix("|>") for name in named[2:])
    return tuple(_CODE_OF_OBSOLETE_CODE.get(code, code) for code in codes)
