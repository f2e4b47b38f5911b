"""The hotwords of a request as token sequences: the spellings in which the model may write each of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from choral.engine.hotword_trie import MAX_NODES, HotwordTrie
from choral.errors import UsageError
from choral.model.tokenizer import WITHOUT_SPACES, Tokenizer
from choral.options import TranscribeOptions

PROMPT_ONLY = (
    "CTranslate2 cannot boost hotwords with beams: only those that fit into the prompt were used; "
    "use beam_size 1, or the engine torch"
)


def without_boost(options: TranscribeOptions, engine_name: str) -> TranscribeOptions:
    """The options for an engine that owns its decoding loop, and cannot boost hotwords of beams."""
    is_boosted = options.hotword_terms and options.hotword_boost and options.beam_size > 1
    return replace(options, hotword_boost=0.0) if engine_name == "ctranslate2" and is_boosted else options


def hotword_trie(options: TranscribeOptions, tokenizer: Tokenizer, language: str) -> HotwordTrie | None:
    terms = options.hotword_terms
    if not terms or not options.hotword_boost:
        return None
    return _build(terms, tokenizer, language not in WITHOUT_SPACES)


@lru_cache(maxsize=16)  # all windows of a request need the same; a trie of a thousand names takes 10 ms
def _build(terms: tuple[str, ...], tokenizer: Tokenizer, has_spaces: bool) -> HotwordTrie:
    spellings = {spelling for term in terms for spelling in (term, term[0].upper() + term[1:])}
    texts = {" " + spelling for spelling in spellings} | (set() if has_spaces else spellings)
    trie = HotwordTrie.build((tuple(tokenizer.encode(text)) for text in sorted(texts)), tokenizer.starts_word)
    if trie.n_nodes > MAX_NODES:
        raise UsageError(f"hotwords have {trie.n_nodes:,} tokens in all; give at most {MAX_NODES:,}: fewer terms")
    return trie
