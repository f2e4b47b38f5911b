"""Streaming voice activity detection: where speech starts and ends while it is being spoken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.audio.samples import as_float
from choral.audio.speech_spans import FRAME_SAMPLES, MIN_SPEECH_S, SpeechTracker
from choral.audio.vad import VoiceDetector
from choral.server.realtime.audio_formats import Int16

BLOCK_SAMPLES = 256 * FRAME_SAMPLES  # 8 s: the detector needs many times the memory of its input


@dataclass(frozen=True)
class SpeechStart:
    sample: int  # the first of the speech, counted from the first that the detector got


@dataclass(frozen=True)
class SpeechEnd:
    sample: int  # the one after the last of the speech


@dataclass(frozen=True)
class SpeechPause:
    """Speech may have ended: there is silence, for less than `min_silence_s`."""


SpeechChange = SpeechStart | SpeechPause | SpeechEnd | None


class StreamingVad:
    """Finds in a stream the speech that the detector would find in the whole recording.

    A start is reported after 0.1 s of speech, an end after `min_silence_s` of silence, and before it, if asked for, a
    pause after `pause_s`, once in each.
    """

    def __init__(self, *, threshold: float, min_silence_s: float, pause_s: float | None = None) -> None:
        self._tracker = SpeechTracker(threshold, min_silence_s)
        self._n_pause_frames = None if pause_s is None else math.ceil(pause_s * SAMPLE_RATE / FRAME_SAMPLES)
        self._detector = VoiceDetector()
        self.remainder = np.zeros(0, np.int16)  # less than a frame, not processed yet
        self._is_speech = False

    def process(self, samples: Int16) -> Iterator[tuple[Int16, SpeechChange]]:
        """Whole frames of 32 ms, each with the change that is certain after it; a remainder waits for more samples."""
        joined = np.concatenate([self.remainder, samples])
        n_whole = joined.size // FRAME_SAMPLES * FRAME_SAMPLES
        self.remainder = joined[n_whole:]
        for start in range(0, n_whole, BLOCK_SAMPLES):
            block = joined[start : min(start + BLOCK_SAMPLES, n_whole)]
            probabilities = self._detector.predict(as_float(block)).tolist()
            for frame, probability in zip(block.reshape(-1, FRAME_SAMPLES), probabilities, strict=True):
                yield frame, self._step(probability)

    def end_speech(self) -> None:
        """At a pause: what follows is other speech."""
        self._tracker.end_run()
        self._is_speech = False

    def _step(self, probability: float) -> SpeechChange:
        run = self._tracker.step(probability)
        if run is not None:
            was_speech, self._is_speech = self._is_speech, False
            return SpeechEnd(run[1] * FRAME_SAMPLES) if was_speech else None
        if self._tracker.n_quiet_frames == self._n_pause_frames:
            if self._is_speech:
                return SpeechPause()
            self._tracker.end_run()  # too short for speech
        first = self._tracker.first
        if self._is_speech or first is None or self._tracker.quiet_from is not None:
            return None
        self._is_speech = (self._tracker.n_frames - first) * FRAME_SAMPLES >= MIN_SPEECH_S * SAMPLE_RATE
        return SpeechStart(first * FRAME_SAMPLES) if self._is_speech else None
