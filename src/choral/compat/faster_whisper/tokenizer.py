"""`Tokenizer`: the tokens of a model, for one language and task."""

from __future__ import annotations

from collections.abc import Sequence

from choral.errors import UsageError
from choral.model import tokenizer as whisper_tokens
from choral.model.languages import CODES

_LANGUAGE_CODES = CODES
_TASKS = ("transcribe", "translate")


class Tokenizer:
    """Takes `WhisperModel.hf_tokenizer`, which is Choral's tokenizer."""

    def __init__(
        self,
        tokenizer: whisper_tokens.Tokenizer,
        multilingual: bool,
        task: str | None = None,
        language: str | None = None,
    ) -> None:
        if multilingual and task not in _TASKS:
            raise UsageError(f"task is {task!r}; it must be one of {', '.join(_TASKS)}")
        if multilingual:
            tokenizer.language_token(language or "")  # raises for one that the model does not know
        self.tokenizer, self.multilingual = tokenizer, multilingual
        self.task_name = task if multilingual else None
        self.language_code = (language or "en") if multilingual else "en"

    @property
    def language(self) -> int | None:
        return self.tokenizer.language_token(self.language_code) if self.multilingual else None

    @property
    def task(self) -> int | None:
        if not self.multilingual:
            return None
        return self.translate if self.task_name == "translate" else self.transcribe

    @property
    def transcribe(self) -> int:
        return self.tokenizer.transcribe

    @property
    def translate(self) -> int:
        return self.tokenizer.translate

    @property
    def sot(self) -> int:
        return self.tokenizer.sot

    @property
    def sot_lm(self) -> int:
        return self.tokenizer.sot_lm

    @property
    def sot_prev(self) -> int:
        return self.tokenizer.sot_prev

    @property
    def eot(self) -> int:
        return self.tokenizer.eot

    @property
    def no_speech(self) -> int:
        return self.tokenizer.no_speech

    @property
    def no_timestamps(self) -> int:
        return self.tokenizer.no_timestamps

    @property
    def timestamp_begin(self) -> int:
        return self.tokenizer.timestamp_begin

    @property
    def sot_sequence(self) -> list[int]:
        return [token for token in (self.sot, self.language, self.task) if token is not None]

    @property
    def non_speech_tokens(self) -> tuple[int, ...]:
        return self.tokenizer.non_speech_tokens

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Without special tokens."""
        return self.tokenizer.decode(token for token in tokens if token < self.eot)

    def decode_with_timestamps(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode_with_timestamps(tokens)

    def split_to_word_tokens(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        return self.tokenizer.split_to_words(tokens, self.language_code)

    def split_tokens_on_unicode(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Whole characters, as in languages that are written without spaces."""
        return self.tokenizer.split_to_words(tokens, "zh")

    def split_tokens_on_spaces(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        return self.tokenizer.split_to_words(tokens, "en")


def get_suppressed_tokens(tokenizer: Tokenizer, suppress_tokens: Sequence[int] | None) -> tuple[int, ...]:
    """All tokens that are never written: those of the option, where -1 stands for symbols, and the special ones."""
    return tokenizer.tokenizer.suppressed(suppress_tokens or ())
