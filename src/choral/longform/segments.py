"""From the tokens of a window to segments with times, and to the place where the next window starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from choral.audio.constants import FRAMES_PER_SECOND, MEL_FRAMES_PER_SECOND
from choral.longform.fallback import Attempt
from choral.model.tokenizer import Tokenizer
from choral.types import Segment

MEL_FRAMES_PER_TIMESTAMP = MEL_FRAMES_PER_SECOND // FRAMES_PER_SECOND
TIMESTAMP_S = 1 / FRAMES_PER_SECOND


@dataclass(frozen=True)
class WindowPlace:
    """Where a window lies in its recording, in mel frames."""

    seek: int
    n_frames: int

    @property
    def start_s(self) -> float:
        return self.seek / MEL_FRAMES_PER_SECOND

    @property
    def duration_s(self) -> float:
        return self.n_frames / MEL_FRAMES_PER_SECOND

    @property
    def stop(self) -> int:
        return self.seek + self.n_frames


@dataclass(frozen=True)
class Split:
    segments: tuple[Segment, ...]
    next_seek: int
    is_closed: bool  # nothing more is said in this window: a single timestamp ends it, or its tail was kept


class Splitter:
    """Splits one window. With `keep_tail` a last segment that lacks its end is kept; without, it is decoded again
    by the next window, which then starts where it starts."""

    def __init__(self, attempt: Attempt, place: WindowPlace, tokenizer: Tokenizer, *, keep_tail: bool) -> None:
        self.attempt, self.place, self.tokenizer, self.keep_tail = attempt, place, tokenizer, keep_tail
        self.tokens = attempt.tokens
        self.is_timestamp = [token >= tokenizer.timestamp_begin for token in self.tokens]
        self.is_closed = self.is_timestamp[-2:] == [False, True]

    def split(self) -> Split:
        pairs = pairwise(self.is_timestamp)
        ends = [i + 1 for i, pair in enumerate(pairs) if all(pair)]
        if not ends:
            return Split((self.unsplit(),), self.place.stop, self.is_closed or self.keep_tail)
        if self.is_closed:
            ends.append(len(self.tokens))
        starts = [0, *ends[:-1]]
        segments = [self.between(slice(start, stop)) for start, stop in zip(starts, ends, strict=True)]
        if self.is_closed:
            return Split(tuple(segments), self.place.stop, True)
        tail = slice(ends[-1], len(self.tokens))
        if self.keep_tail and any(token < self.tokenizer.eot for token in self.tokens[tail]):
            return Split((*segments, self.tail(tail)), self.place.stop, True)
        frames = self.timestamp(self.tokens[ends[-1] - 1]) * MEL_FRAMES_PER_TIMESTAMP
        return Split(tuple(segments), self.place.seek + frames, False)

    def between(self, part: slice) -> Segment:
        tokens = self.tokens[part]
        offset = self.place.start_s
        return self.segment(
            part,
            offset + self.timestamp(tokens[0]) * TIMESTAMP_S,
            offset + self.timestamp(tokens[-1]) * TIMESTAMP_S,
        )

    def unsplit(self) -> Segment:
        """All of the window is one segment; it ends at the last timestamp, if there is one."""
        last = next((token for token in reversed(self.tokens) if token >= self.tokenizer.timestamp_begin), 0)
        duration_s = self.place.duration_s
        if last > self.tokenizer.timestamp_begin:
            duration_s = self.timestamp(last) * TIMESTAMP_S
        return self.segment(slice(len(self.tokens)), self.place.start_s, self.place.start_s + duration_s)

    def tail(self, part: slice) -> Segment:
        start_s = self.place.start_s + self.timestamp(self.tokens[part.start]) * TIMESTAMP_S
        return self.segment(part, start_s, max(start_s, self.place.start_s + self.place.duration_s))

    def timestamp(self, token: int) -> int:
        return token - self.tokenizer.timestamp_begin

    def segment(self, part: slice, start_s: float, end_s: float) -> Segment:
        tokens, logprobs = self.tokens[part], self.attempt.token_logprobs
        return Segment(
            id=0,
            seek=self.place.seek,
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
