"""Whisper's rules for what may come next, each a small unit over all rows of a batch, without a read-back.

A rule changes logits [rows, vocab] in place. What a rule must know of the tokens so far is kept in `History`, as
tensors of one number a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.window import Decode
from choral.model.tokenizer import Tokenizer

FORBIDDEN = -math.inf
NEVER = -1  # stands for "no such token yet"


@dataclass
class History:
    """The newest tokens of every row, prompt and prefix not counted."""

    last: Tensor
    before_last: Tensor
    last_timestamp: Tensor
    n_sampled: int = 0

    @classmethod
    def empty(cls, n_rows: int, device: torch.device) -> History:
        never = torch.full((n_rows,), NEVER, device=device)
        return cls(never, never, never)

    def append(self, tokens: Tensor, timestamp_begin: int) -> None:
        self.before_last, self.last = self.last, tokens
        self.last_timestamp = torch.where(tokens >= timestamp_begin, tokens, self.last_timestamp)
        self.n_sampled += 1

    def select_rows(self, rows: Tensor) -> None:
        self.last, self.before_last = self.last[rows], self.before_last[rows]
        self.last_timestamp = self.last_timestamp[rows]


class SuppressBlank:
    """A text does not start with a space alone, nor with its end."""

    def __init__(self, tokenizer: Tokenizer, device: torch.device) -> None:
        self.blanks = torch.tensor([*tokenizer.encode(" "), tokenizer.eot], device=device)

    def apply(self, logits: Tensor, history: History) -> None:
        if history.n_sampled == 0:
            logits[:, self.blanks] = FORBIDDEN


class SuppressTokens:
    def __init__(self, tokens: Sequence[int], device: torch.device) -> None:
        self.tokens = torch.tensor(tokens, device=device)

    def apply(self, logits: Tensor, history: History) -> None:
        logits[:, self.tokens] = FORBIDDEN


class TimestampPairs:
    """Timestamps come in pairs, end then start, except right before the end of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eot, self.begin = tokenizer.eot, tokenizer.timestamp_begin

    def apply(self, logits: Tensor, history: History) -> None:
        after_timestamp = history.last >= self.begin
        pair_is_complete = (history.before_last >= self.begin) | (history.n_sampled < 2)
        forbid_rows(logits[:, self.begin :], after_timestamp & pair_is_complete)
        forbid_rows(logits[:, : self.eot], after_timestamp & ~pair_is_complete)


class TimestampsRise:
    """Time does not go back, and a segment is longer than nothing."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> None:
        self.begin = tokenizer.timestamp_begin
        self.timestamps = torch.arange(self.begin, n_vocab, device=device)

    def apply(self, logits: Tensor, history: History) -> None:
        # The start of a segment may equal the end of the one before; its own end may not.
        is_start = (history.last >= self.begin) & (history.before_last < self.begin) & (history.n_sampled >= 2)
        earliest = torch.where(is_start, history.last_timestamp, history.last_timestamp + 1)
        logits[:, self.begin :].masked_fill_(self.timestamps < earliest[:, None], FORBIDDEN)


class FirstTimestamp:
    """A text starts with a timestamp, and not with a late one."""

    def __init__(self, tokenizer: Tokenizer, latest: int | None) -> None:
        self.begin, self.latest = tokenizer.timestamp_begin, latest

    def apply(self, logits: Tensor, history: History) -> None:
        if history.n_sampled == 0:
            logits[:, : self.begin] = FORBIDDEN
            if self.latest is not None:
                logits[:, self.begin + self.latest + 1 :] = FORBIDDEN


class LikelierTimestamps:
    """When all timestamps together are likelier than the likeliest text token, a timestamp it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.begin = tokenizer.timestamp_begin

    def apply(self, logits: Tensor, history: History) -> None:
        any_timestamp = logits[:, self.begin :].logsumexp(dim=-1)
        forbid_rows(logits[:, : self.begin], any_timestamp > logits[:, : self.begin].amax(dim=-1))


Rule = SuppressBlank | SuppressTokens | TimestampPairs | TimestampsRise | FirstTimestamp | LikelierTimestamps


def forbid_rows(logits: Tensor, rows: Tensor) -> None:
    logits.masked_fill_(rows[:, None], FORBIDDEN)


def rules_for(work: Decode, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> tuple[Rule, ...]:
    """The rules of one window, in the order in which they apply."""
    rules: list[Rule] = []
    if work.suppress_blank:
        rules.append(SuppressBlank(tokenizer, device))
    suppressed = set(work.suppress_tokens)
    if work.timestamps:
        suppressed.add(tokenizer.no_timestamps)
    rules.append(SuppressTokens(sorted(suppressed), device))
    if work.timestamps:
        seconds = work.max_initial_timestamp
        latest = None if seconds is None else round(seconds * FRAMES_PER_SECOND)
        rules += [
            TimestampPairs(tokenizer),
            TimestampsRise(tokenizer, n_vocab, device),
            FirstTimestamp(tokenizer, latest),
            LikelierTimestamps(tokenizer),
        ]
    return tuple(rules)
