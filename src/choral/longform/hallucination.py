"""Finds improbable words around silences, which the model tends to invent, and skips them."""

from __future__ import annotations

from dataclasses import dataclass

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.longform.segments import WindowPlace
from choral.longform.words import last_word_end
from choral.types import Segment, Word

PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
WORDS_JUDGED = 8


@dataclass(frozen=True)
class Kept:
    """What stays of a window, and where the next one starts."""

    segments: tuple[Segment, ...]
    next_seek: int
    is_discarded: bool = False  # the window counts as never decoded: it only moved on


@dataclass(frozen=True)
class SilenceSkipper:
    """The rules for one window; all times are seconds of the recording."""

    place: WindowPlace
    threshold_s: float
    window_end_s: float  # 30 s after its start, even where the recording ends before
    content_frames: int
    last_speech_s: float

    def skip(self, segments: tuple[Segment, ...], next_seek: int, *, is_closed: bool) -> Kept:
        if not is_closed:
            next_seek = self.seek_past_words(segments, next_seek)
        first = next((segment for segment in segments if segment.words), None)
        if first is not None and is_anomaly(first):
            gap_s = first.start - self.place.start_s
            if gap_s > self.threshold_s:
                return Kept((), self.place.seek + round(gap_s * MEL_FRAMES_PER_SECOND), is_discarded=True)
        return self.drop_from_first_invented(segments, next_seek)

    def seek_past_words(self, segments: tuple[Segment, ...], next_seek: int) -> int:
        end_s = last_word_end(segments)
        if end_s is None or end_s <= self.place.start_s:
            return next_seek
        if self.window_end_s - end_s > self.threshold_s:
            return round(end_s * MEL_FRAMES_PER_SECOND)
        return self.place.stop

    def drop_from_first_invented(self, segments: tuple[Segment, ...], next_seek: int) -> Kept:
        last_end_s = self.last_speech_s
        for i, segment in enumerate(segments):
            if not segment.words:
                continue
            following = next((later for later in segments[i + 1 :] if later.words), None)
            if is_anomaly(segment) and self.is_alone(segment, following, last_end_s):
                seek = round(max(self.place.start_s + 1, segment.start) * MEL_FRAMES_PER_SECOND)
                content_s = self.content_frames / MEL_FRAMES_PER_SECOND
                if content_s - segment.end < self.threshold_s:
                    seek = self.content_frames
                return Kept(segments[:i], seek)
            last_end_s = segment.end
        return Kept(segments, next_seek)

    def is_alone(self, segment: Segment, following: Segment | None, last_end_s: float) -> bool:
        """Silence, or more invention, on both sides."""
        start_s = self.place.start_s
        next_start_s = start_s + self.place.duration_s
        if following is not None and following.words:
            next_start_s = following.words[0].start
        silence_before = (
            segment.start - last_end_s > self.threshold_s
            or segment.start < self.threshold_s
            or segment.start - start_s < 2.0
        )
        silence_after = (
            next_start_s - segment.end > self.threshold_s
            or (following is not None and is_anomaly(following))
            or self.window_end_s - segment.end < 2.0
        )
        return silence_before and silence_after


def is_anomaly(segment: Segment) -> bool:
    words = [word for word in segment.words or () if word.text not in PUNCTUATION][:WORDS_JUDGED]
    if not segment.words:
        return False
    score = sum(anomaly(word) for word in words)
    return score >= 3 or score + 0.01 >= len(words)


def anomaly(word: Word) -> float:
    """Very improbable, very short and very long words score; a good word scores 0."""
    duration_s = word.end - word.start
    improbable = 1.0 if word.probability < 0.15 else 0.0
    too_short = max(0.0, 0.133 - duration_s) * 15
    too_long = max(0.0, duration_s - 2.0)
    return improbable + too_short + too_long
