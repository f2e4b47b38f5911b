"""Where speech starts and stops while it is spoken: what the voice detector would find in the whole recording.

Sound comes out again in frames of 32 ms, each with what is certain once it was heard. A start is told as soon as there
was speech for 0.1 s, a stop as soon as the silence lasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.samples import as_float
from choral.audio.vad import FRAME_SAMPLES, MIN_SPEECH_S, SpeechTracker, VoiceDetector, end_threshold_of

Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class SpeechStart:
    sample: int  # the first of the speech, counted from the first that was heard


@dataclass(frozen=True)
class SpeechEnd:
    sample: int  # the one behind the last of the speech


Change = SpeechStart | SpeechEnd | None


class StreamingVad:
    def __init__(self, *, threshold: float, min_silence_s: float) -> None:
        min_silence_frames = min_silence_s * SAMPLE_RATE / FRAME_SAMPLES
        self._tracker = SpeechTracker(threshold, end_threshold_of(threshold), min_silence_frames)
        self._detector = VoiceDetector()
        self.rest = np.zeros(0, np.int16)  # less than a frame, not heard yet
        self._is_speech = False

    def hear(self, samples: Int16) -> Iterator[tuple[Int16, Change]]:
        """Whole frames and what is known with each; what is left of the samples waits for the next ones."""
        joined = np.concatenate([self.rest, samples])
        n_whole = joined.size // FRAME_SAMPLES * FRAME_SAMPLES
        self.rest = joined[n_whole:]
        if not n_whole:
            return
        probabilities = self._detector.predict(as_float(joined[:n_whole])).tolist()
        for frame, probability in zip(joined[:n_whole].reshape(-1, FRAME_SAMPLES), probabilities, strict=True):
            yield frame, self._step(probability)

    def _step(self, probability: float) -> Change:
        run = self._tracker.step(probability)
        if run is not None:
            was_speech, self._is_speech = self._is_speech, False
            return SpeechEnd(run[1] * FRAME_SAMPLES) if was_speech else None
        first = self._tracker.first
        if self._is_speech or first is None or self._tracker.quiet_from is not None:
            return None
        self._is_speech = (self._tracker.n_frames - first) * FRAME_SAMPLES >= MIN_SPEECH_S * SAMPLE_RATE
        return SpeechStart(first * FRAME_SAMPLES) if self._is_speech else None
