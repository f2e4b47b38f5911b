"""Word timestamps: the start and end of every word from cross-attention, as openai-whisper computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from choral.audio.constants import FRAMES_PER_SECOND
from choral.engine.window import Aligned, AlignParams, TokenTimes, Window, WindowAudio
from choral.longform.chain_types import ChainContext, Steps, WindowRange, request
from choral.longform.dtw import token_start_frames
from choral.options import TranscribeOptions
from choral.transcript import Segment, Word

SENTENCE_ENDS = ".。!！?？"
MAX_MEDIAN_S = 0.7
BORDER_TOLERANCE_S = 0.5  # between the border of a segment and that of its first or last word


@dataclass
class WordTiming:
    """A word while its borders are still being adjusted, in seconds from the start of its window."""

    text: str
    n_tokens: int
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class WordDurations:
    """How long words last in this window; a much longer one contains a pause."""

    median_s: float

    @property
    def max_s(self) -> float:
        return 2 * self.median_s

    @classmethod
    def of(cls, timings: list[WordTiming]) -> WordDurations:
        durations = [timing.end - timing.start for timing in timings if timing.end != timing.start]
        return cls(min(MAX_MEDIAN_S, float(np.median(durations))) if durations else 0.0)


def add_words(
    segments: tuple[Segment, ...],
    window: WindowRange,
    audio: WindowAudio,
    context: ChainContext,
    last_speech_s: float,
) -> Steps[tuple[Segment, ...]]:
    """The segments of a window with their words; segment borders move to those of their words."""
    segment_tokens = [text_tokens(segment, context) for segment in segments]
    timings = yield from align_words(segment_tokens, window, audio, context)
    durations = WordDurations.of(timings)
    shorten_at_sentence_ends(timings, durations)
    merge_punctuation(timings, context.options)

    result = []
    for segment, tokens in zip(segments, segment_tokens, strict=True):
        timed = take_words(timings, len(tokens), window.start_s)
        if timed:
            shorten_after_pause(timed, last_speech_s, durations)
            start, end = match_borders(timed, segment.start, segment.end, durations)
            segment, last_speech_s = replace(segment, start=start, end=end), end
        result.append(replace(segment, words=as_words(timed)))
    return tuple(result)


def word_timings(
    segments: Sequence[Segment], window: WindowRange, audio: WindowAudio, context: ChainContext
) -> Steps[list[list[WordTiming]]]:
    """The words of each segment with times in the recording; their borders are those of the alignment."""
    segment_tokens = [text_tokens(segment, context) for segment in segments]
    timings = yield from align_words(segment_tokens, window, audio, context)
    merge_punctuation(timings, context.options)
    return [take_words(timings, len(tokens), window.start_s) for tokens in segment_tokens]


def text_tokens(segment: Segment, context: ChainContext) -> list[int]:
    return [token for token in segment.tokens if token < context.tokenizer.eot]


def align_words(
    segment_tokens: list[list[int]], window: WindowRange, audio: WindowAudio, context: ChainContext
) -> Steps[list[WordTiming]]:
    eot = context.tokenizer.eot
    tokens = [token for tokens in segment_tokens for token in tokens]
    words, word_tokens = context.tokenizer.split_to_words([*tokens, eot], context.language)
    if len(words) == 1:  # the end of text
        return []
    n_frames = window.n_frames // 2
    params = AlignParams(
        text_tokens=tuple(tokens), n_frames=n_frames, language=context.language, task=context.options.task
    )
    aligned = yield from request(Window(audio, params))
    return find_timings(aligned, words[:-1], word_tokens[:-1], n_frames)


def find_timings(
    aligned: Aligned | TokenTimes, texts: list[str], word_tokens: list[list[int]], n_frames: int
) -> list[WordTiming]:
    """`texts` and `word_tokens` are the words of the aligned text; `n_frames` are not padding."""
    if not texts or n_frames == 0:
        return []
    token_frames = aligned.token_frames if isinstance(aligned, TokenTimes) else token_start_frames(aligned, n_frames)
    token_times_s = token_frames / FRAMES_PER_SECOND
    borders = np.cumsum([0, *(len(tokens) for tokens in word_tokens)])
    return [
        WordTiming(
            text=text,
            n_tokens=int(stop - start),
            start=float(token_times_s[start]),
            end=float(token_times_s[stop]),
            probability=float(np.mean(aligned.token_probs[start:stop], dtype=np.float64)),
        )
        for text, start, stop in zip(texts, borders[:-1], borders[1:], strict=True)
    ]


def shorten_at_sentence_ends(timings: list[WordTiming], durations: WordDurations) -> None:
    """Removes the pause between sentences from the full stop, or from the first word after it."""
    if durations.median_s == 0:
        return
    for previous, timing in pairwise(timings):
        if timing.end - timing.start > durations.max_s:
            if timing.text in SENTENCE_ENDS:
                timing.end = timing.start + durations.max_s
            elif previous.text in SENTENCE_ENDS:
                timing.start = timing.end - durations.max_s


def merge_punctuation(timings: list[WordTiming], options: TranscribeOptions) -> None:
    """Joins marks with the word after or before them, and leaves an empty timing without tokens in their place."""
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


def take_words(timings: list[WordTiming], n_tokens: int, offset_s: float) -> list[WordTiming]:
    """Removes the words of the next `n_tokens` tokens from `timings` and shifts their times by `offset_s`."""
    words, n_taken = [], 0
    while timings and n_taken < n_tokens:
        timing = timings.pop(0)
        n_taken += timing.n_tokens
        if timing.text:
            timing.start, timing.end = round(offset_s + timing.start, 2), round(offset_s + timing.end, 2)
            words.append(timing)
    return words


def shorten_after_pause(words: list[WordTiming], last_speech_s: float, durations: WordDurations) -> None:
    """Removes a pause before the segment from its first two words."""
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - last_speech_s <= 4 * durations.median_s:
        return
    is_long = first.end - first.start > durations.max_s
    both_long = second is not None and second.end - first.start > 2 * durations.max_s
    if is_long or both_long:
        if second is not None and second.end - second.start > durations.max_s:
            first.end = second.start = max(second.end / 2, second.end - durations.max_s)
        first.start = max(0.0, first.end - durations.max_s)


def match_borders(words: list[WordTiming], start: float, end: float, durations: WordDurations) -> tuple[float, float]:
    """Makes segment and words start and end together; the segment's border wins where the word is too long."""
    first, last = words[0], words[-1]
    if start < first.end and start - BORDER_TOLERANCE_S > first.start:
        first.start = max(0.0, min(first.end - durations.median_s, start))
    else:
        start = first.start
    if end > last.start and end + BORDER_TOLERANCE_S < last.end:
        last.end = max(last.start + durations.median_s, end)
    else:
        end = last.end
    return start, end


def as_words(timings: list[WordTiming]) -> tuple[Word, ...]:
    return tuple(Word(t.text, t.start, t.end, t.probability) for t in timings)


def last_word_end(segments: tuple[Segment, ...]) -> float | None:
    """The end of the last word, or of the last segment if there are no words."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end
    return segments[-1].end if segments else None
