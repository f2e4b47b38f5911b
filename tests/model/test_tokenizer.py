"""The tokenizer against that of openai-whisper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import whisper.decoding
import whisper.tokenizer as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.errors import ModelCorrupt, UsageError
from choral.model import languages
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint

TINY = ModelDims(
    n_mels=80, n_audio_ctx=1500, n_audio_state=384, n_audio_head=6, n_audio_layer=4,
    n_vocab=51865, n_text_ctx=448, n_text_state=384, n_text_head=6, n_text_layer=4,
)  # fmt: skip
KINDS = {"english": 51864, "99 languages": 51865, "100 languages": 51866}


def ours(kind: str) -> Tokenizer:
    return Tokenizer.for_checkpoint(dataclasses.replace(TINY, n_vocab=KINDS[kind]))


def theirs(kind: str, language: str | None = None, task: str | None = None) -> reference.Tokenizer:
    return reference.get_tokenizer(
        kind != "english", num_languages=100 if kind == "100 languages" else 99, language=language, task=task
    )


kinds = pytest.mark.parametrize("kind", KINDS)
TEXTS = st.text() | st.text("ab ,.'-♪你好éñ🎵\n\t[](){}<|>0123456789", max_size=60)


@kinds
def test_special_tokens(kind: str) -> None:
    tokenizer, oracle = ours(kind), theirs(kind)
    names = "eot sot sot_prev sot_lm no_speech no_timestamps translate transcribe timestamp_begin"
    for name in names.split():
        assert getattr(tokenizer, name) == getattr(oracle, name), name
    assert tokenizer.is_multilingual == (kind != "english")
    assert tokenizer.non_speech_tokens == oracle.non_speech_tokens
    for token in range(tokenizer.eot, KINDS[kind]):
        assert tokenizer.decode_with_timestamps([token]) == oracle.decode_with_timestamps([token])
    assert tokenizer.timestamp_begin + 1500 == KINDS[kind] - 1


@pytest.mark.parametrize("kind", ["99 languages", "100 languages"])
def test_languages(kind: str) -> None:
    tokenizer, oracle = ours(kind), theirs(kind)
    assert tokenizer.languages == tuple(reference.LANGUAGES)[: oracle.num_languages]
    assert tokenizer.language_tokens == tuple(sorted(oracle.all_language_tokens))
    for code in tokenizer.languages:
        assert tokenizer.language_token(code) == oracle.to_language_token(code)
        for task in ("transcribe", "translate"):
            assert tokenizer.sot_sequence(code, task) == theirs(kind, code, task).sot_sequence
    assert tokenizer.sot_sequence(None, "transcribe") == oracle.sot_sequence


def test_english_only_models_accept_only_english() -> None:
    tokenizer = ours("english")
    assert tokenizer.languages == ("en",)
    assert tokenizer.language_tokens == (theirs("english").to_language_token("en"),)
    assert tokenizer.sot_sequence("en", "transcribe") == theirs("english").sot_sequence == (tokenizer.sot,)
    with pytest.raises(UsageError, match="french: it knows only English"):
        tokenizer.language_token("fr")


def test_cantonese_needs_a_newer_model() -> None:
    assert ours("100 languages").language_token("yue") == 50358
    with pytest.raises(UsageError, match="cantonese: it knows 99 languages"):
        ours("99 languages").language_token("yue")


@kinds
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_encode(kind: str, text: str) -> None:
    tokens = ours(kind).encode(text)
    assert tokens == theirs(kind).encode(text, disallowed_special=())
    assert ours(kind).decode(tokens) == text


@kinds
def test_names_of_special_tokens_encode_as_text(kind: str) -> None:
    tokens = ours(kind).encode("say <|endoftext|> twice")
    assert max(tokens) < ours(kind).eot
    assert ours(kind).decode(tokens) == "say <|endoftext|> twice"


def token_lists(n_vocab: int) -> st.SearchStrategy[list[int]]:
    single_bytes = st.integers(0, 255)
    timestamps = st.integers(n_vocab - 1501, n_vocab - 1)
    return st.lists(st.integers(0, n_vocab - 1) | single_bytes | timestamps, max_size=30)


@kinds
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_decode(kind: str, data: st.DataObject) -> None:
    tokens = data.draw(token_lists(KINDS[kind]))
    assert ours(kind).decode(tokens) == theirs(kind).decode(tokens)
    assert ours(kind).decode_with_timestamps(tokens) == theirs(kind).decode_with_timestamps(tokens)


@kinds
@settings(max_examples=500, deadline=None)
@given(data=st.data(), language=st.sampled_from(["en", "de", "zh", "ja", "th", "lo", "my", "yue"]))
def test_split_to_words_of_any_tokens(kind: str, data: st.DataObject, language: str) -> None:
    if kind != "100 languages" and language == "yue":
        language = "zh"
    tokens = [*data.draw(token_lists(KINDS[kind])), ours(kind).eot]
    _compare_words(kind, tokens, language)


@kinds
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_split_to_words_of_text(kind: str, text: str) -> None:
    tokens = [*ours(kind).encode(text), ours(kind).eot]
    for language in ("en", "ja"):
        _compare_words(kind, tokens, language)


def _compare_words(kind: str, tokens: list[int], language: str) -> None:
    words, word_tokens = ours(kind).split_to_words(tokens, language)
    assert [token for group in word_tokens for token in group] == tokens
    assert len(words) == len(word_tokens)
    oracle = dataclasses.replace(theirs(kind), language=language)
    try:
        their_words, their_tokens = oracle.split_to_word_tokens(tokens)
    except IndexError:
        return  # the reference looks beyond the end of some texts with broken characters
    if sum(map(len, their_tokens)) < len(tokens):
        # It drops what is left over after a broken character; ours are the same up to there.
        n_whole = max(len(their_words) - 1, 0)
        assert (words[:n_whole], word_tokens[:n_whole]) == (their_words[:n_whole], their_tokens[:n_whole])
    else:
        assert (words, word_tokens) == (their_words, their_tokens)


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (" elle est là, n'est-ce pas ?", "fr", [" elle", " est", " là", ",", " n", "'est", "-ce", " pas", " ?"]),
        ("鹿は、奈良", "ja", ["鹿", "は", "、", "奈", "良"]),
        ("鹿は、奈良", "en", ["鹿は、奈良"]),
    ],
)
def test_split_to_words_of_sentences(text: str, language: str, words: list[str]) -> None:
    tokenizer = ours("99 languages")
    assert tokenizer.split_to_words(tokenizer.encode(text), language)[0] == words


@kinds
@pytest.mark.parametrize("option", [(-1,), (-1, 5, 7), (5, 7), (50256, -1)])
def test_suppressed(kind: str, option: tuple[int, ...]) -> None:
    class Task:  # what `_get_suppress_tokens` needs of a decoding task
        options = whisper.decoding.DecodingOptions(suppress_tokens=list(option))
        tokenizer = theirs(kind)

    expected = whisper.decoding.DecodingTask._get_suppress_tokens(Task())  # type: ignore[arg-type]
    assert ours(kind).suppressed(option) == expected


@pytest.mark.parametrize("token", [-2, 51865, 10**9])
def test_suppressing_an_invalid_token(token: int) -> None:
    with pytest.raises(UsageError, match=f"suppress_tokens has {token}; this model's tokens are 0 to 51864"):
        ours("99 languages").suppressed((token,))


# --- vocabularies that come with models


def test_vocabularies_of_real_models_equal_the_shipped_ones(
    tiny_en_ct2: Path, base_ct2: Path, tiny_ggml: Path, base_en_ggml: Path
) -> None:
    for path in (tiny_en_ct2, base_ct2, tiny_ggml, base_en_ggml):
        checkpoint = open_checkpoint(path)
        assert checkpoint.vocabulary is not None
        with_own = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
        assert with_own == Tokenizer.for_checkpoint(checkpoint.dims)


def _shipped(kind: str) -> Iterator[bytes]:
    encoding = theirs(kind).encoding
    return (encoding.decode_single_token_bytes(token) for token in range(KINDS[kind]))


def test_tokens_added_after_the_timestamps() -> None:
    dims = dataclasses.replace(TINY, n_vocab=51865 + 7)
    vocabulary = [*_shipped("99 languages"), b"<|mine|>"]
    tokenizer = Tokenizer.for_checkpoint(dims, vocabulary)
    assert tokenizer.timestamp_begin == 50364
    assert tokenizer.languages == ours("99 languages").languages
    assert tokenizer.decode_with_timestamps([51864, 51871]) == "<|30.00|><|unused51871|>"
    assert set(range(51865, 51872)) <= set(tokenizer.suppressed((-1,)))


def test_custom_vocabulary() -> None:
    text = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc", b" ab"]
    n_vocab = len(text) + 2 + 3 + 6 + 1501
    special = [f"<|{name}|>".encode() for name in ("endoftext", "startoftranscript", "en", "iw", "xx", "translate")]
    vocabulary = [*text, *special, b"<|transcribe|>"]
    tokenizer = Tokenizer.for_checkpoint(dataclasses.replace(TINY, n_vocab=n_vocab), vocabulary)
    assert tokenizer.encode("abcab") == [257, 256]
    assert (tokenizer.eot, tokenizer.translate, tokenizer.timestamp_begin) == (259, 264, 270)
    assert tokenizer.decode([257, 256, tokenizer.timestamp_begin]) == "abcab"


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([b"a", b"b"], "lacks single bytes"),
        ([*(bytes([byte]) for byte in range(256)), b"a"], "has a token twice"),
        ([*(bytes([byte]) for byte in range(256)), b"<|endoftext|>", b"<|en|>", b"<|translate|>"], "in an order"),
        ([bytes([high, low]) for high in range(200) for low in range(256)], "lacks single bytes"),
    ],
)
def test_invalid_vocabularies(vocabulary: list[bytes], message: str) -> None:
    with pytest.raises(ModelCorrupt, match=message):
        Tokenizer.for_checkpoint(TINY, vocabulary)


def test_models_too_small_for_the_special_tokens() -> None:
    with pytest.raises(ModelCorrupt, match="too few"):
        Tokenizer.for_checkpoint(dataclasses.replace(TINY, n_vocab=51000))


# --- languages


def test_language_names_and_codes_equal_openai_whisper() -> None:
    assert reference.LANGUAGES == languages.NAMES
    assert tuple(reference.LANGUAGES) == languages.CODES
    for name, code in reference.TO_LANGUAGE_CODE.items():
        assert languages.to_code(name) == languages.to_code(name.upper()) == code
    for code in reference.LANGUAGES:
        assert languages.to_code(f" {code} ") == code


@pytest.mark.parametrize(("given_name", "hint"), [("germna", "german"), ("englsh", "english"), ("xq1", "such as en")])
def test_unknown_languages(given_name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        languages.to_code(given_name)
