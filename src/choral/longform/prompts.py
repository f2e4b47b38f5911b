"""What a window is told: the words to expect, the initial prompt, the text before it, and how its own text starts."""

from __future__ import annotations

from collections.abc import Sequence

from choral.model.tokenizer import Tokenizer
from choral.types import Segment, TranscribeOptions


class Prompts:
    """The memory of one chain. A window that needed a high temperature is not trusted as a prompt for the next."""

    def __init__(self, options: TranscribeOptions, tokenizer: Tokenizer, n_text_ctx: int, *, has_prefix: bool) -> None:
        self.options = options
        self.room = n_text_ctx // 2 - 1  # tokens of prompt that a window takes
        self.hotwords = encode(options.hotwords, tokenizer)[: self.room // 2]
        self.initial = encode(options.initial_prompt, tokenizer)
        self.first_prefix = encode(options.prefix, tokenizer) if has_prefix else ()
        self.before: tuple[int, ...] = () if options.carry_initial_prompt else self.initial

    def prompt(self) -> tuple[int, ...]:
        fixed = self.hotwords
        if self.options.carry_initial_prompt:
            fixed += self.initial[-(self.room - len(fixed)) :]
        room = self.room - len(fixed)
        return fixed + (self.before[-room:] if room else ())

    def prefix(self) -> tuple[int, ...]:
        return self.first_prefix

    def remember(self, segments: Sequence[Segment], temperature: float) -> None:
        """After a window whose text was kept."""
        self.first_prefix = ()
        self.before += tuple(token for segment in segments for token in segment.tokens)
        too_hot = temperature > self.options.prompt_reset_temperature
        if too_hot or not self.options.condition_on_previous_text:
            self.before = ()
        self.before = self.before[-self.room :]


def encode(text: str | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(" " + text.strip())) if text and text.strip() else ()
