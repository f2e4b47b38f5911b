"""The start and end of every word, from where the decoder looked while it wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.window import Aligned, TokenTimes
from choral.longform.dtw import warp
from choral.types import Segment, TranscribeOptions, Word

MEDIAN_WIDTH = 7
SENTENCE_ENDS = ".。!！?？"
LONGEST_TYPICAL_WORD_S = 0.7


@dataclass
class Timing:
    """A word while its borders are still being moved, in seconds from the start of its window."""

    text: str
    n_tokens: int
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class TypicalWord:
    """How long words last in this window: what is much longer is a pause that was counted as a word."""

    median_s: float

    @property
    def longest_s(self) -> float:
        return 2 * self.median_s

    @classmethod
    def of(cls, timings: list[Timing]) -> TypicalWord:
        durations = [timing.end - timing.start for timing in timings if timing.end != timing.start]
        return cls(min(LONGEST_TYPICAL_WORD_S, float(np.median(durations))) if durations else 0.0)


def find_timings(
    aligned: Aligned | TokenTimes, texts: list[str], word_tokens: list[list[int]], n_frames: int
) -> list[Timing]:
    """`texts` and `word_tokens` are the words of the aligned text; `n_frames` how many frames are sound."""
    if not texts or n_frames == 0:
        return []
    token_frames = aligned.token_frames if isinstance(aligned, TokenTimes) else frames_of_tokens(aligned, n_frames)
    token_times_s = token_frames / FRAMES_PER_SECOND
    borders = np.cumsum([0, *(len(tokens) for tokens in word_tokens)])
    return [
        Timing(
            text=text,
            n_tokens=int(stop - start),
            start=float(token_times_s[start]),
            end=float(token_times_s[stop]),
            probability=float(np.mean(aligned.token_probs[start:stop], dtype=np.float64)),
        )
        for text, start, stop in zip(texts, borders[:-1], borders[1:], strict=True)
    ]


def frames_of_tokens(aligned: Aligned, n_frames: int) -> npt.NDArray[np.intp]:
    """The frame at which each text token starts, and at last the end of text."""
    rows, columns = warp(-attention(aligned, n_frames))
    is_new_token = np.diff(rows, prepend=rows[0] - 1) > 0
    return columns[is_new_token]


def attention(aligned: Aligned, n_frames: int) -> npt.NDArray[np.float32]:
    """Where each token looked: the heads' attention, each frame normalised over the tokens, smoothed, averaged."""
    scores = aligned.scores[:, :, :n_frames]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    deviation = weights.std(axis=-2, keepdims=True)
    weights = (weights - weights.mean(axis=-2, keepdims=True)) / np.maximum(deviation, np.finfo(np.float32).tiny)
    smoothed: npt.NDArray[np.float32] = median_filter(weights).mean(axis=0)
    return smoothed[aligned.n_start_tokens : -1]


def median_filter(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    half = MEDIAN_WIDTH // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, axis=-1)
    return np.partition(windows, half, axis=-1)[..., half]


def shorten_at_sentence_ends(timings: list[Timing], typical: TypicalWord) -> None:
    """A pause between sentences ends up in the mark, or in the first word after it: cut it off there."""
    if typical.median_s == 0:
        return
    for before, timing in pairwise(timings):
        if timing.end - timing.start > typical.longest_s:
            if timing.text in SENTENCE_ENDS:
                timing.end = timing.start + typical.longest_s
            elif before.text in SENTENCE_ENDS:
                timing.start = timing.end - typical.longest_s


def merge_punctuation(timings: list[Timing], options: TranscribeOptions) -> None:
    """Marks join the word after or before them; what they leave behind is empty and has no tokens."""
    after = len(timings) - 1
    for i in range(len(timings) - 2, -1, -1):
        mark = timings[i]
        if mark.text.startswith(" ") and mark.text.strip() in options.prepend_punctuations:
            word = timings[after]
            word.text, word.n_tokens = mark.text + word.text, mark.n_tokens + word.n_tokens
            mark.text, mark.n_tokens = "", 0
        else:
            after = i
    before = 0
    for j in range(1, len(timings)):
        word, mark = timings[before], timings[j]
        if not word.text.endswith(" ") and mark.text in options.append_punctuations:
            word.text, word.n_tokens = word.text + mark.text, word.n_tokens + mark.n_tokens
            mark.text, mark.n_tokens = "", 0
        else:
            before = j


def take_words(timings: list[Timing], n_tokens: int, offset_s: float) -> list[Timing]:
    """Removes the words of the next `n_tokens` tokens from `timings`; their times become the recording's."""
    words, n_taken = [], 0
    while timings and n_taken < n_tokens:
        timing = timings.pop(0)
        n_taken += timing.n_tokens
        if timing.text:
            timing.start, timing.end = round(offset_s + timing.start, 2), round(offset_s + timing.end, 2)
            words.append(timing)
    return words


def shorten_after_pause(words: list[Timing], last_speech_s: float, typical: TypicalWord) -> None:
    """The first words after a pause must not contain the pause."""
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - last_speech_s <= 4 * typical.median_s:
        return
    is_long = first.end - first.start > typical.longest_s
    both_long = second is not None and second.end - first.start > 2 * typical.longest_s
    if is_long or both_long:
        if second is not None and second.end - second.start > typical.longest_s:
            first.end = second.start = max(second.end / 2, second.end - typical.longest_s)
        first.start = max(0.0, first.end - typical.longest_s)


def agree_on_borders(words: list[Timing], start: float, end: float, typical: TypicalWord) -> tuple[float, float]:
    """Segment and words start and end together; the segment wins where a word at its border is too long."""
    first, last = words[0], words[-1]
    if start < first.end and start - 0.5 > first.start:
        first.start = max(0.0, min(first.end - typical.median_s, start))
    else:
        start = first.start
    if end > last.start and end + 0.5 < last.end:
        last.end = max(last.start + typical.median_s, end)
    else:
        end = last.end
    return start, end


def as_words(timings: list[Timing]) -> tuple[Word, ...]:
    return tuple(Word(t.text, t.start, t.end, t.probability) for t in timings)


def last_word_end(segments: tuple[Segment, ...]) -> float | None:
    """Where the last word ends; where the last segment ends, if there are no words."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end
    return segments[-1].end if segments else None
