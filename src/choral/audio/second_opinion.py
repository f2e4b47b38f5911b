"""A second opinion on loud audio in which the voice detector hears nothing.

The detector's network carries its state from frame to frame, and after some speakers it misses many seconds of plain
speech that a fresh state hears. Of speech on the telephone, over music or from afar it is not sure, but of other sounds
it is much less so. Audio without speech that is about as loud as the speech before it is therefore searched again, in
pieces with a fresh state and a level of their own, and with a lower threshold where much of a piece may be speech.
Silence and background noise are too quiet for that and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.audio.speech_spans import SpeechSpan, speech_spans
from choral.audio.vad import VoiceDetector

MIN_UNHEARD = 2 * SAMPLE_RATE  # shorter stretches are pauses
MIN_FOUND = 3 * SAMPLE_RATE // 2  # in a piece, with padding; less is a sound that only resembles speech
MAX_LEVEL_RATIO = 10**1.25  # 25 dB: of the last speech to audio that is searched again
LEVEL_SAMPLES = 5 * SAMPLE_RATE  # of the last speech, to measure its level
MIN_LEVEL, LEVEL = 1e-3, 0.1  # root mean squares: below the first is silence, to the second pieces are brought
PIECE_SAMPLES = 10 * SAMPLE_RATE
FAINT = 0.1  # the threshold for faint speech
MIN_FAINT_SHARE = 0.08  # of the frames above it: faint speech has 0.15 to 0.8, other sounds up to 0.01


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
        min_level = max(MIN_LEVEL, self._last_level() / MAX_LEVEL_RATIO)
        if self._level(start, stop) < min_level:
            return []
        n_pieces = max(1, round((stop - start) / PIECE_SAMPLES))
        edges = np.linspace(start, stop, n_pieces + 1).astype(int).tolist()
        return [span for first, last in pairwise(edges) for span in self._search(first, last)]

    def _search(self, start: int, stop: int) -> list[SpeechSpan]:
        gain = np.float32(LEVEL / max(MIN_LEVEL, self._level(start, stop)))
        probabilities = VoiceDetector().predict(self._recording.samples(start, stop) * gain)
        is_faint = (probabilities > FAINT).mean() >= MIN_FAINT_SHARE
        found = speech_spans(
            probabilities,
            stop - start,
            threshold=min(FAINT, self._threshold) if is_faint else self._threshold,
            min_silence_s=self._min_silence_s,
            pad_s=self._pad_s,
        )
        if sum(span.stop - span.start for span in found) < MIN_FOUND:
            return []
        return [SpeechSpan(start + span.start, start + span.stop) for span in found]

    def _last_level(self) -> float:
        if self._last is None:
            return 0.0
        return self._level(max(self._last.start, self._last.stop - LEVEL_SAMPLES), self._last.stop)

    def _level(self, start: int, stop: int) -> float:
        return float(np.sqrt(np.square(self._recording.samples(start, stop), dtype=np.float64).mean()))
