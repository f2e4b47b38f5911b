"""Speech without text: found after a window is decoded, and decoded again in a window of its own.

Whisper sometimes skips seconds of speech inside a window and goes on. What the voice detector heard is compared with
the times of the segments; only if these leave speech without text, or have too little text for it, are words aligned,
which decides. Text is added, never replaced: what is decoded again goes between the words around it, without those of
their words that it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.engine.window import WindowAudio
from choral.longform.chain_types import ChainContext, Steps, WindowRange
from choral.longform.cuts import NO_END, Clip, intersect
from choral.longform.words import WordTiming, word_timings
from choral.model.tokenizer import Tokenizer
from choral.transcript import Segment

MIN_MISSED_FRAMES = 80  # of speech; less is the end of a word or a breath
WORD_MARGIN_S = 0.35  # around a word, whose borders are not exact
MAX_WORD_S = 1.0  # the alignment stretches a longer one over a pause or missed speech
PIECE_MARGIN_FRAMES = 20  # around missed speech, so that its first and last sounds are whole
MAX_TOKEN_S, SLACK_S = 0.35, 1.0  # a segment with more speech than this per token may miss some of it
MAX_SEAM_WORDS = 4  # that both sides of a seam may say

# Decodes a piece of the window again; no segments if its text is not to be trusted.
Decode = Callable[[WindowRange, WindowAudio], Steps[tuple[Segment, ...]]]


@dataclass(frozen=True)
class AlignedSegment:
    segment: Segment
    words: tuple[WordTiming, ...]

    def part(self, first: int, last: int, tokenizer: Tokenizer) -> AlignedSegment:
        """Its words from `first` up to, not including, `last`, as a segment of their own."""
        words = self.words[first:last]
        if len(words) == len(self.words):
            return self
        part = slice(self._place(first, tokenizer.eot), self._place(last, tokenizer.eot))
        tokens = self.segment.tokens[part]
        segment = replace(
            self.segment,
            start=words[0].start if first > 0 else self.segment.start,
            end=words[-1].end if last < len(self.words) else self.segment.end,
            text=tokenizer.decode([token for token in tokens if token < tokenizer.eot]),
            tokens=tokens,
            words=self.segment.words and self.segment.words[first:last],
            token_logprobs=self.segment.token_logprobs and self.segment.token_logprobs[part],
        )
        return AlignedSegment(segment, words)

    def within(self, start_s: float, end_s: float) -> AlignedSegment:
        """With all times between these: the alignment may have stretched words over what is missed."""

        def limit(time_s: float) -> float:
            return min(max(time_s, start_s), end_s)

        segment = self.segment
        words = segment.words and tuple(
            replace(word, start=limit(word.start), end=limit(word.end)) for word in segment.words
        )
        segment = replace(segment, start=limit(segment.start), end=limit(segment.end), words=words)
        return AlignedSegment(segment, self.words)

    def _place(self, n_words: int, eot: int) -> int:
        """The index of the first token after this many words; timestamps stay with the words between them."""
        if n_words == 0:
            return 0
        places = [i for i, token in enumerate(self.segment.tokens) if token < eot]
        n_tokens = sum(word.n_tokens for word in self.words[:n_words])
        is_end = n_words >= len(self.words) or n_tokens >= len(places)
        return len(self.segment.tokens) if is_end else places[n_tokens]


def add_missed(
    segments: Sequence[Segment],
    window: WindowRange,
    audio: WindowAudio,
    speech: list[Clip],
    context: ChainContext,
    decode: Decode,
) -> Steps[list[Segment]]:
    """The segments of a window with those of the speech that they miss, in order."""
    tokenizer = context.tokenizer
    full = [time_of(segment) for segment in segments if not is_sparse(segment, speech, tokenizer.eot)]
    if not find_missed(speech, full):
        return list(segments)
    rest = yield from align(segments, window, audio, context)
    done: list[AlignedSegment] = []
    for missed in find_missed(speech, covered_by([word for each in rest for word in each.words])):
        start = max(window.seek, missed.start - PIECE_MARGIN_FRAMES)
        piece = WindowRange(start, min(window.stop, missed.stop + PIECE_MARGIN_FRAMES) - start)
        if piece.n_frames > window.n_frames - MIN_MISSED_FRAMES:
            continue  # the same window again
        found = yield from decode_piece(piece, speech, context, decode)
        before, after = split_at((missed.start + missed.stop) / 2 / MEL_FRAMES_PER_SECOND, rest, tokenizer)
        new = without_seams(found, texts_of([*done, *before]), texts_of(after), tokenizer)
        if new:
            start_s, end_s = new[0].segment.start, new[-1].segment.end
            done += [*(each.within(0, start_s) for each in before), *new]
            rest = [each.within(end_s, math.inf) for each in after]
    return [each.segment for each in (*done, *rest)]


def decode_piece(
    piece: WindowRange, speech: list[Clip], context: ChainContext, decode: Decode
) -> Steps[list[AlignedSegment]]:
    """The segments of a window of its own, which may miss speech too."""
    audio = context.cut(piece)
    found = yield from decode(piece, audio)
    if not found:
        return []
    [own_speech] = intersect([Clip(piece.seek, piece.stop)], speech)
    segments = yield from add_missed(found, piece, audio, own_speech, context, decode)
    return (yield from align(segments, piece, audio, context))


def align(
    segments: Sequence[Segment], window: WindowRange, audio: WindowAudio, context: ChainContext
) -> Steps[list[AlignedSegment]]:
    words = yield from word_timings(segments, window, audio, context)
    return [AlignedSegment(segment, tuple(own)) for segment, own in zip(segments, words, strict=True)]


def is_sparse(segment: Segment, speech: Sequence[Clip], eot: int) -> bool:
    """Whether it may have too little text for its speech."""
    time = time_of(segment)
    n_frames = sum(max(0, min(time.stop, span.stop) - max(time.start, span.start)) for span in speech)
    n_tokens = sum(token < eot for token in segment.tokens)
    return n_frames / MEL_FRAMES_PER_SECOND > SLACK_S + MAX_TOKEN_S * n_tokens


def time_of(segment: Segment) -> Clip:
    return frames_of(segment.start, segment.end)


def covered_by(words: Sequence[WordTiming]) -> Iterator[Clip]:
    """Where words are surely said. A stretched word is at the end that another word holds in its place."""
    is_long = [True, *(word.end - word.start > MAX_WORD_S for word in words), True]
    for i, word in enumerate(words):
        start, end = word.start - WORD_MARGIN_S, word.end + WORD_MARGIN_S
        if not is_long[i + 1]:
            yield frames_of(start, end)
            continue
        if not is_long[i]:
            yield frames_of(start, word.start + MAX_WORD_S)
        if not is_long[i + 2]:
            yield frames_of(word.end - MAX_WORD_S, end)


def find_missed(speech: list[Clip], covered: Iterable[Clip]) -> list[Clip]:
    """The stretches between what is covered that contain enough speech, from their first speech to their last."""
    gaps, start = [], 0
    for clip in [*sorted(covered, key=lambda clip: clip.start), Clip(NO_END, NO_END)]:
        if start < clip.start:
            gaps.append(Clip(start, clip.start))
        start = max(start, clip.stop)
    return [
        Clip(spans[0].start, spans[-1].stop)
        for spans in intersect(gaps, speech)
        if sum(span.stop - span.start for span in spans) >= MIN_MISSED_FRAMES
    ]


def split_at(
    at_s: float, segments: Sequence[AlignedSegment], tokenizer: Tokenizer
) -> tuple[list[AlignedSegment], list[AlignedSegment]]:
    """What begins before a time, and the rest; a segment with words on both sides becomes two."""
    before: list[AlignedSegment] = []
    after: list[AlignedSegment] = []
    for each in segments:
        n_before = sum(word.start < at_s for word in each.words)
        if 0 < n_before < len(each.words):
            before.append(each.part(0, n_before, tokenizer))
            after.append(each.part(n_before, len(each.words), tokenizer))
        else:
            (before if n_before > 0 else after).append(each)
    return before, after


def without_seams(
    segments: Sequence[AlignedSegment], before: list[str], after: list[str], tokenizer: Tokenizer
) -> list[AlignedSegment]:
    """New segments without the words at their ends that the text around them says too."""
    texts = texts_of(segments)
    first = overlap(before, texts)
    last = len(texts) - overlap(texts[first:], after)
    kept, offset = [], 0
    for each in segments:
        start, stop = max(0, first - offset), min(len(each.words), last - offset)
        if start < stop:
            kept.append(each.part(start, stop, tokenizer))
        offset += len(each.words)
    return kept


def overlap(before: list[str], after: list[str]) -> int:
    """How many words the end of one text and the beginning of the next have in common."""
    sizes = range(min(MAX_SEAM_WORDS, len(before), len(after)), 0, -1)
    return next((n for n in sizes if before[-n:] == after[:n]), 0)


def texts_of(segments: Sequence[AlignedSegment]) -> list[str]:
    words = [word for each in segments for word in each.words]
    return ["".join(filter(str.isalnum, word.text)).casefold() for word in words]


def frames_of(start_s: float, end_s: float) -> Clip:
    return Clip(round(start_s * MEL_FRAMES_PER_SECOND), round(end_s * MEL_FRAMES_PER_SECOND))
