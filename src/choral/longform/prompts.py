"""The prompt of each window: hotwords, the initial prompt, previous text, and the prefix of its own text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions
from choral.transcript import Segment


class Prompts:
    """The text history of one chain. A window that needed a high temperature is not used as a prompt."""

    def __init__(self, options: TranscribeOptions, tokenizer: Tokenizer, n_text_ctx: int, *, has_prefix: bool) -> None:
        self.options = options
        self.max_tokens = n_text_ctx // 2 - 1
        self.hotwords = self._fitting_hotwords(tokenizer)
        self.initial = encode(options.initial_prompt, tokenizer)
        self.prefix = encode(options.prefix, tokenizer) if has_prefix else ()  # of the first window only
        self.history: tuple[int, ...] = () if options.carry_initial_prompt else self.initial

    def _fitting_hotwords(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """At most half of the prompt. A longer list that is boosted is left out: a part of it would mislead."""
        hotwords, max_tokens = encode(", ".join(self.options.hotword_terms), tokenizer), self.max_tokens // 2
        return () if len(hotwords) > max_tokens and self.options.hotword_boost else hotwords[:max_tokens]

    def prompt(self) -> tuple[int, ...]:
        fixed = self.hotwords
        if self.options.carry_initial_prompt:
            fixed += self.initial[-(self.max_tokens - len(fixed)) :]
        n_left = self.max_tokens - len(fixed)
        return fixed + (self.history[-n_left:] if n_left else ())

    def forget(self) -> None:
        """Drops the text so far: the next window is in another language."""
        self.history = ()

    def remember(self, segments: Sequence[Segment], temperature: float) -> None:
        """Adds the text of a window that was accepted."""
        self.prefix = ()
        self.history += tuple(token for segment in segments for token in segment.tokens)
        is_too_hot = temperature > self.options.prompt_reset_temperature
        if is_too_hot or not self.options.condition_on_previous_text:
            self.history = ()
        self.history = self.history[-self.max_tokens :]


@lru_cache(maxsize=64)  # all chains of a request encode the same texts
def encode(text: str | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(" " + text.strip())) if text and text.strip() else ()
