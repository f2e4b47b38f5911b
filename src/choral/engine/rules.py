"""Whisper's rules for what may come next, each a small unit over all rows of a batch, without a read-back.

A rule changes logits [rows, vocab] in place. What windows ask for (timestamps, suppressed tokens, …) and what a rule
must know of their tokens so far lie in tensors with an entry for each slot, so that windows with other options, and at
other points of their text, share every step.
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
NEVER = -1  # stands for "no such token yet"


@dataclass(frozen=True)
class Recent:
    """The newest tokens of some rows, prompt and prefix not counted; each [rows]."""

    last: Tensor
    before_last: Tensor
    last_timestamp: Tensor
    n_sampled: Tensor


class History:
    """The same for every slot."""

    def __init__(self, n_slots: int, timestamp_begin: int, device: torch.device) -> None:
        self.timestamp_begin = timestamp_begin
        self._numbers = torch.full((4, n_slots), NEVER, device=device)

    def reset(self, slots: Tensor) -> None:
        self._numbers[:, slots] = NEVER
        self._numbers[3, slots] = 0

    def at(self, slots: Tensor) -> Recent:
        return Recent(*self._numbers[:, slots])

    def append(self, slots: Tensor, tokens: Tensor) -> None:
        recent = self.at(slots)
        last_timestamp = torch.where(tokens >= self.timestamp_begin, tokens, recent.last_timestamp)
        self._numbers[:, slots] = torch.stack([tokens, recent.last, last_timestamp, recent.n_sampled + 1])

    def copy(self, source_slots: Tensor, slots: Tensor) -> None:
        self._numbers[:, slots] = self._numbers[:, source_slots]


class SuppressBlank:
    """A text does not start with a space alone, nor with its end."""

    def __init__(self, tokenizer: Tokenizer, n_slots: int, device: torch.device) -> None:
        self.blanks = torch.tensor([*tokenizer.encode(" "), tokenizer.eot], device=device)
        self.is_on = torch.zeros(n_slots, dtype=torch.bool, device=device)

    def set(self, slots: Tensor, params: DecodeParams) -> None:
        self.is_on[slots] = params.suppress_blank

    def apply(self, logits: Tensor, slots: Tensor, recent: Recent) -> None:
        rows = self.is_on[slots] & (recent.n_sampled == 0)
        logits[:, self.blanks] = logits[:, self.blanks].masked_fill(rows[:, None], FORBIDDEN)


class SuppressTokens:
    """What a window never wants; with timestamps, the token that says there are none."""

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
    """Where timestamps stand, for windows that want them:

    they come in pairs, end then start, except right before the end of text; time does not go back, and a segment is
    longer than nothing; a text starts with a timestamp, and not with a late one; and when all timestamps together are
    likelier than the top_k text token, a timestamp it is.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_slots: int, device: torch.device) -> None:
        self.eot, self.begin = tokenizer.eot, tokenizer.timestamp_begin
        self.tokens = torch.arange(self.begin, n_vocab, device=device)
        self.is_on = torch.zeros(n_slots, dtype=torch.bool, device=device)
        self.latest_first = torch.zeros(n_slots, dtype=torch.long, device=device)

    def set(self, slots: Tensor, params: DecodeParams) -> None:
        self.is_on[slots] = params.timestamps
        seconds = params.max_initial_timestamp
        n_frames = len(self.tokens) if seconds is None else round(seconds * FRAMES_PER_SECOND)
        self.latest_first[slots] = self.begin + n_frames

    def apply(self, logits: Tensor, slots: Tensor, recent: Recent) -> None:
        is_on = self.is_on[slots]
        text, times = logits[:, : self.begin], logits[:, self.begin :]
        is_first = is_on & (recent.n_sampled == 0)
        after_timestamp = is_on & (recent.last >= self.begin)
        pair_is_complete = (recent.before_last >= self.begin) | (recent.n_sampled < 2)

        forbid_rows(times, after_timestamp & pair_is_complete)
        forbid_rows(logits[:, : self.eot], after_timestamp & ~pair_is_complete)
        self.forbid_the_past(times, is_on, recent)
        forbid_rows(text, is_first)
        times.masked_fill_(is_first[:, None] & (self.tokens > self.latest_first[slots, None]), FORBIDDEN)
        forbid_rows(text, is_on & (times.logsumexp(dim=-1) > text.amax(dim=-1)))

    def forbid_the_past(self, times: Tensor, is_on: Tensor, recent: Recent) -> None:
        # The start of a segment may equal the end of the one before; its own end may not.
        is_start = (recent.last >= self.begin) & (recent.before_last < self.begin) & (recent.n_sampled >= 2)
        earliest = torch.where(is_start, recent.last_timestamp, recent.last_timestamp + 1)
        times.masked_fill_(is_on[:, None] & (self.tokens < earliest[:, None]), FORBIDDEN)


def forbid_rows(logits: Tensor, rows: Tensor) -> None:
    logits.masked_fill_(rows[:, None], FORBIDDEN)


class Rules:
    """All of them, in the order in which they apply, with the history they look at."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_slots: int, device: torch.device) -> None:
        self.history = History(n_slots, tokenizer.timestamp_begin, device)
        self.rules = (
            SuppressBlank(tokenizer, n_slots, device),
            SuppressTokens(tokenizer, n_vocab, n_slots, device),
            Timestamps(tokenizer, n_vocab, n_slots, device),
        )

    def begin(self, slots: Sequence[int], params: DecodeParams) -> None:
        """A window takes its places."""
        places = torch.tensor(slots, device=self.rules[0].blanks.device)
        self.history.reset(places)
        for rule in self.rules:
            rule.set(places, params)

    def apply(self, logits: Tensor, slots: Tensor) -> None:
        recent = self.history.at(slots)
        for rule in self.rules:
            rule.apply(logits, slots, recent)
