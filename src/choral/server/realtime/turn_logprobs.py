"""The log-probabilities of a turn's tokens, as its events have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from choral.server.responses import logprob_fields
from choral.transcript import Token

MAX_TOKENS = 8192  # in the event of a complete turn: about half an hour of speech, or 700 kB


class TurnLogprobs:
    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._unsent: list[Token] = []
        self._is_complete = True

    def add(self, tokens: Sequence[Token]) -> None:
        self._unsent += tokens
        self._is_complete = self._is_complete and len(self._tokens) + len(tokens) <= MAX_TOKENS
        if self._is_complete:
            self._tokens += tokens
        else:
            self._tokens.clear()

    def take_unsent(self) -> list[dict[str, Any]]:
        """For the next delta; tokens of white space that is held back come with the text after it."""
        tokens, self._unsent = self._unsent, []
        return logprob_fields(tokens)

    @property
    def all_fields(self) -> list[dict[str, Any]] | None:
        """For the event of the complete turn; None if they are too many, so that only the deltas have them."""
        return logprob_fields(self._tokens) if self._is_complete else None
