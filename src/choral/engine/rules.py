"""Whisper's decoding rules, each vectorised over all rows of a batch, without a read-back from the device.

A rule masks logits [rows, vocab] in place. The windows' options (timestamps, suppressed tokens, …) and their newest
tokens are tensors with an entry for each slot, so windows with different options share every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.window import DecodeParams
from choral.model.tokenizer import Tokenizer

FORBIDDEN = -math.inf
NO_TOKEN = -1  # there is none yet


@dataclass(frozen=True)
class Recent:
    """The newest sampled tokens of some rows, each [rows]."""

    last: Tensor
    before_last: Tensor
    last_timestamp: Tensor
    n_sampled: Tensor


class History:
    """The newest sampled tokens of every slot."""

    def __init__(self, n_slots: int, timestamp_begin: int, device: torch.device) -> None:
        self.timestamp_begin = timestamp_begin
        self._recent = torch.full((4, n_slots), NO_TOKEN, device=device)

    def reset(self, slots: Tensor) -> None:
        self._recent[:, slots] = NO_TOKEN
        self._recent[3, slots] = 0

    def at(self, slots: Tensor) -> Recent:
        return Recent(*self._recent[:, slots])

    def last(self, slots: Tensor) -> Tensor:
        """The newest token of each slot: the decoder's next input."""
        return self._recent[0, slots]

    def extended(self, slots: Tensor, tokens: Tensor) -> Tensor:  # [4, rows]
        """The history of these slots with a token more; `set` stores it, in these or in other slots."""
        recent = self.at(slots)
        last_timestamp = torch.where(tokens >= self.timestamp_begin, tokens, recent.last_timestamp)
        return torch.stack([tokens, recent.last, last_timestamp, recent.n_sampled + 1])

    def set(self, slots: Tensor, recent: Tensor) -> None:
        self._recent[:, slots] = recent


class SuppressBlank:
    """The text does not start with a lone space or with the end of text."""

    def __init__(self, tokenizer: Tokenizer, n_slots: int, device: torch.device) -> None:
        self.blanks = torch.tensor([*tokenizer.encode(" "), tokenizer.eot], device=device)
        self.is_on = torch.zeros(n_slots, dtype=torch.bool, device=device)

    def set(self, slots: Tensor, params: DecodeParams) -> None:
        self.is_on[slots] = params.suppress_blank

    def apply(self, logits: Tensor, slots: Tensor, recent: Recent) -> None:
        rows = self.is_on[slots] & (recent.n_sampled == 0)
        logits[:, self.blanks] = logits[:, self.blanks].masked_fill(rows[:, None], FORBIDDEN)


class SuppressTokens:
    """Tokens that the window bans; with timestamps, also the token `no_timestamps`."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_slots: int, device: torch.device) -> None:
        self.no_timestamps = tokenizer.no_timestamps
        self.banned_tokens = torch.zeros(n_slots, n_vocab, dtype=torch.bool, device=device)

    def set(self, slots: Tensor, params: DecodeParams) -> None:
        tokens = sorted({*params.suppress_tokens, *((self.no_timestamps,) if params.timestamps else ())})
        row = torch.zeros_like(self.banned_tokens[0])
        row[torch.tensor(tokens, dtype=torch.long, device=row.device)] = True
        self.banned_tokens[slots] = row

    def apply(self, logits: Tensor, slots: Tensor, recent: Recent) -> None:
        logits.masked_fill_(self.banned_tokens[slots], FORBIDDEN)


class Timestamps:
    """For windows with timestamps.

    They come in pairs (end, start), except right before the end of text; they do not decrease, and no segment is
    empty; the text starts with a timestamp of at most `max_initial_timestamp`; and when all timestamps together are
    more likely than any text token, a timestamp is sampled.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_slots: int, device: torch.device) -> None:
        self.eot, self.begin = tokenizer.eot, tokenizer.timestamp_begin
        self.tokens = torch.arange(self.begin, n_vocab, device=device)
        self.is_on = torch.zeros(n_slots, dtype=torch.bool, device=device)
        self.max_first = torch.zeros(n_slots, dtype=torch.long, device=device)

    def set(self, slots: Tensor, params: DecodeParams) -> None:
        self.is_on[slots] = params.timestamps
        seconds = params.max_initial_timestamp
        n_frames = len(self.tokens) if seconds is None else round(seconds * FRAMES_PER_SECOND)
        self.max_first[slots] = self.begin + n_frames

    def apply(self, logits: Tensor, slots: Tensor, recent: Recent) -> None:
        is_on = self.is_on[slots]
        text, times = logits[:, : self.begin], logits[:, self.begin :]
        is_first = is_on & (recent.n_sampled == 0)
        after_timestamp = is_on & (recent.last >= self.begin)
        pair_is_complete = (recent.before_last >= self.begin) | (recent.n_sampled < 2)

        forbid_rows(times, after_timestamp & pair_is_complete)
        forbid_rows(logits[:, : self.eot], after_timestamp & ~pair_is_complete)
        self.forbid_earlier(times, is_on, recent)
        forbid_rows(text, is_first)
        times.masked_fill_(is_first[:, None] & (self.tokens > self.max_first[slots, None]), FORBIDDEN)
        forbid_rows(text, is_on & (times.logsumexp(dim=-1) > text.amax(dim=-1)))

    def forbid_earlier(self, times: Tensor, is_on: Tensor, recent: Recent) -> None:
        # The start of a segment may equal the end of the one before; its own end may not.
        is_start = (recent.last >= self.begin) & (recent.before_last < self.begin) & (recent.n_sampled >= 2)
        earliest = torch.where(is_start, recent.last_timestamp, recent.last_timestamp + 1)
        times.masked_fill_(is_on[:, None] & (self.tokens < earliest[:, None]), FORBIDDEN)


def forbid_rows(logits: Tensor, rows: Tensor) -> None:
    logits.masked_fill_(rows[:, None], FORBIDDEN)


class Rules:
    """All rules in the order in which they apply, and the history they read."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_slots: int, device: torch.device) -> None:
        self.history = History(n_slots, tokenizer.timestamp_begin, device)
        self.rules = (
            SuppressBlank(tokenizer, n_slots, device),
            SuppressTokens(tokenizer, n_vocab, n_slots, device),
            Timestamps(tokenizer, n_vocab, n_slots, device),
        )

    def begin(self, slots: Sequence[int], params: DecodeParams) -> None:
        """Set the options of a new window."""
        indices = torch.tensor(slots, device=self.rules[0].blanks.device)
        self.history.reset(indices)
        for rule in self.rules:
            rule.set(indices, params)

    def apply(self, logits: Tensor, slots: Tensor) -> None:
        recent = self.history.at(slots)
        for rule in self.rules:
            rule.apply(logits, slots, recent)
