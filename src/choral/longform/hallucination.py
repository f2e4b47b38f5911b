"""Hallucination filter: drops improbable words around silences, which the model tends to invent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from choral.audio.constants import MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.longform.chain_types import Accepted, WindowRange
from choral.longform.cuts import available_frames
from choral.longform.words import last_word_end
from choral.transcript import Segment, Word

PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
MAX_SCORED_WORDS = 8
MIN_ANOMALY_SCORE = 3.0
BORDER_S = 2.0  # a segment this close to a border of the window counts as beside silence


@dataclass(frozen=True)
class HallucinationFilter:
    """The rules for one window; all times are seconds of the recording."""

    window: WindowRange
    threshold_s: float
    recording: Recording
    last_speech_s: float

    @property
    def end_s(self) -> float:
        """30 s after the start, even if the recording ends earlier."""
        return (self.window.seek + WINDOW_MEL_FRAMES) / MEL_FRAMES_PER_SECOND

    def apply(self, segments: tuple[Segment, ...], next_seek: int, *, is_closed: bool) -> Accepted:
        if not is_closed:
            next_seek = self.seek_past_words(segments, next_seek)
        first = next((segment for segment in segments if segment.words), None)
        if first is not None and is_anomaly(first):
            gap_s = first.start - self.window.start_s
            if gap_s > self.threshold_s:
                return Accepted((), self.window.seek + round(gap_s * MEL_FRAMES_PER_SECOND), is_discarded=True)
        return self.drop_from_first_hallucination(segments, next_seek)

    def seek_past_words(self, segments: tuple[Segment, ...], next_seek: int) -> int:
        last_end_s = last_word_end(segments)
        if last_end_s is None or last_end_s <= self.window.start_s:
            return next_seek
        if self.end_s - last_end_s > self.threshold_s:
            return round(last_end_s * MEL_FRAMES_PER_SECOND)
        return self.window.stop

    def drop_from_first_hallucination(self, segments: tuple[Segment, ...], next_seek: int) -> Accepted:
        last_end_s = self.last_speech_s
        for i, segment in enumerate(segments):
            if not segment.words:
                continue
            following = next((later for later in segments[i + 1 :] if later.words), None)
            if is_anomaly(segment) and self.is_isolated(segment, following, last_end_s):
                seek = round(max(self.window.start_s + 1, segment.start) * MEL_FRAMES_PER_SECOND)
                # Beyond this frame it makes no difference where the recording ends, so there is no need to wait for it.
                max_frames = math.ceil((segment.end + self.threshold_s) * MEL_FRAMES_PER_SECOND) + 1
                content_frames = available_frames(self.recording, max_frames)
                if content_frames / MEL_FRAMES_PER_SECOND - segment.end < self.threshold_s:
                    seek = content_frames
                return Accepted(segments[:i], seek)
            last_end_s = segment.end
        return Accepted(segments, next_seek)

    def is_isolated(self, segment: Segment, following: Segment | None, last_end_s: float) -> bool:
        """Whether there is silence, or another anomaly, on both sides."""
        start_s = self.window.start_s
        next_start_s = start_s + self.window.duration_s
        if following is not None and following.words:
            next_start_s = following.words[0].start
        silence_before = (
            segment.start - last_end_s > self.threshold_s
            or segment.start < self.threshold_s
            or segment.start - start_s < BORDER_S
        )
        silence_after = (
            next_start_s - segment.end > self.threshold_s
            or (following is not None and is_anomaly(following))
            or self.end_s - segment.end < BORDER_S
        )
        return silence_before and silence_after


def is_anomaly(segment: Segment) -> bool:
    if not segment.words:
        return False
    words = [word for word in segment.words if word.text not in PUNCTUATION][:MAX_SCORED_WORDS]
    score = sum(anomaly_score(word) for word in words)
    return score >= MIN_ANOMALY_SCORE or score + 0.01 >= len(words)


def anomaly_score(word: Word) -> float:
    """0 for a normal word; more for a very improbable, very short or very long one."""
    duration_s = word.end - word.start
    improbable = 1.0 if word.probability < 0.15 else 0.0
    too_short = max(0.0, 0.133 - duration_s) * 15
    too_long = max(0.0, duration_s - 2.0)
    return improbable + too_short + too_long
