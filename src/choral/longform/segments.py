"""Splits the tokens of a window into segments by their timestamps, and finds where the next window starts."""

from __future__ import annotations

from itertools import pairwise

from choral.audio.constants import FRAMES_PER_SECOND, MEL_FRAMES_PER_SECOND
from choral.longform.chain_types import Attempt, Split, WindowRange
from choral.model.tokenizer import Tokenizer
from choral.transcript import Segment

MEL_FRAMES_PER_TIMESTAMP = MEL_FRAMES_PER_SECOND // FRAMES_PER_SECOND
TIMESTAMP_S = 1 / FRAMES_PER_SECOND


class Splitter:
    """Splits one window. With `keep_tail` a last segment without end timestamp is kept; otherwise the next window
    starts there and decodes it again."""

    def __init__(self, attempt: Attempt, window: WindowRange, tokenizer: Tokenizer, *, keep_tail: bool) -> None:
        self.attempt, self.window, self.tokenizer, self.keep_tail = attempt, window, tokenizer, keep_tail
        self.tokens = attempt.tokens
        self.is_timestamp = [token >= tokenizer.timestamp_begin for token in self.tokens]
        self.is_closed = self.is_timestamp[-2:] == [False, True]

    def split(self) -> Split:
        pairs = pairwise(self.is_timestamp)
        ends = [i + 1 for i, pair in enumerate(pairs) if all(pair)]
        if not ends:
            return Split((self.unsplit(),), self.window.stop, self.is_closed or self.keep_tail)
        if self.is_closed:
            ends.append(len(self.tokens))
        starts = [0, *ends[:-1]]
        segments = [self.between(slice(start, stop)) for start, stop in zip(starts, ends, strict=True)]
        if self.is_closed:
            return Split(tuple(segments), self.window.stop, True)
        tail = slice(ends[-1], len(self.tokens))
        if self.keep_tail and any(token < self.tokenizer.eot for token in self.tokens[tail]):
            return Split((*segments, self.tail(tail)), self.window.stop, True)
        frames = self.timestamp(self.tokens[ends[-1] - 1]) * MEL_FRAMES_PER_TIMESTAMP
        return Split(tuple(segments), self.window.seek + frames, False)

    def between(self, part: slice) -> Segment:
        tokens = self.tokens[part]
        offset = self.window.start_s
        return self.segment(
            part,
            offset + self.timestamp(tokens[0]) * TIMESTAMP_S,
            offset + self.timestamp(tokens[-1]) * TIMESTAMP_S,
        )

    def unsplit(self) -> Segment:
        """The whole window as one segment, which ends at the last timestamp, if there is one."""
        last = next((token for token in reversed(self.tokens) if token >= self.tokenizer.timestamp_begin), 0)
        duration_s = self.window.duration_s
        if last > self.tokenizer.timestamp_begin:
            duration_s = self.timestamp(last) * TIMESTAMP_S
        return self.segment(slice(len(self.tokens)), self.window.start_s, self.window.start_s + duration_s)

    def tail(self, part: slice) -> Segment:
        start_s = self.window.start_s + self.timestamp(self.tokens[part.start]) * TIMESTAMP_S
        return self.segment(part, start_s, max(start_s, self.window.start_s + self.window.duration_s))

    def timestamp(self, token: int) -> int:
        return token - self.tokenizer.timestamp_begin

    def segment(self, part: slice, start_s: float, end_s: float) -> Segment:
        tokens, logprobs = self.tokens[part], self.attempt.token_logprobs
        return Segment(
            id=0,
            seek=self.window.seek,
            start=start_s,
            end=end_s,
            text=self.tokenizer.decode([token for token in tokens if token < self.tokenizer.eot]),
            tokens=tokens,
            temperature=self.attempt.temperature,
            avg_logprob=self.attempt.avg_logprob,
            compression_ratio=self.attempt.compression_ratio,
            no_speech_prob=self.attempt.no_speech_prob,
            token_logprobs=logprobs and logprobs[part],
        )
