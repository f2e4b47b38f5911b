"""A second opinion on loud audio in which the voice detector hears nothing.

The detector's network carries its state from frame to frame, and after some speakers it misses many seconds of plain
speech that a fresh state hears. Audio without speech that is about as loud as the speech before it is therefore
searched again with a fresh state. Silence and background noise are too quiet for that and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.audio.speech_spans import SpeechSpan
from choral.audio.vad import SpeechFinder

MIN_UNHEARD = 2 * SAMPLE_RATE  # shorter stretches are pauses
MIN_FOUND = 3 * SAMPLE_RATE // 2  # with padding; less is a sound that only resembles speech
MAX_POWER_RATIO = 10**1.5  # 15 dB: of the last speech to audio that is searched again
LEVEL_SAMPLES = 5 * SAMPLE_RATE  # of the last speech, to measure its level


class SecondOpinion:
    """Takes the spans of one recording in order, and adds those that were missed between them."""

    def __init__(self, recording: Recording, *, threshold: float, min_silence_s: float, pad_s: float) -> None:
        self._recording = recording
        self._threshold, self._min_silence_s, self._pad_s = threshold, min_silence_s, pad_s
        self._last: SpeechSpan | None = None  # that the detector heard
        self.n_decided = 0  # samples before which no more speech will be found

    def add(self, spans: Iterable[SpeechSpan]) -> list[SpeechSpan]:
        """These spans, each after what was missed before it; the last may come again when it is longer."""
        found = []
        for span in spans:
            found += [*self.search_until(span.start), span]
            self._last, self.n_decided = span, max(self.n_decided, span.stop)
        return found

    def search_until(self, stop: int) -> list[SpeechSpan]:
        """What was missed before this sample; a short stretch before it is left until more of it is known."""
        start = self.n_decided
        if stop - start < MIN_UNHEARD:
            return []
        self.n_decided = stop
        if not self._is_loud(start, stop):
            return []
        finder = SpeechFinder(threshold=self._threshold, min_silence_s=self._min_silence_s, pad_s=self._pad_s)
        found = [*finder.push(self._recording.samples(start, stop)), *finder.finish()]
        if sum(span.stop - span.start for span in found) < MIN_FOUND:
            return []
        return [SpeechSpan(start + span.start, start + span.stop) for span in found]

    def _is_loud(self, start: int, stop: int) -> bool:
        if self._last is None:  # the state is still fresh
            return False
        level = self._power(max(self._last.start, self._last.stop - LEVEL_SAMPLES), self._last.stop)
        return self._power(start, stop) * MAX_POWER_RATIO >= level

    def _power(self, start: int, stop: int) -> float:
        samples = self._recording.samples(start, stop)
        return float(np.square(samples, dtype=np.float64).mean())
