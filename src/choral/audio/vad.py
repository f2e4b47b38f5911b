"""Voice activity detection: Silero's model over a recording, and speech spans from its probabilities.

The model is recurrent and takes frames of 512 samples (32 ms) with the 64 samples before them. Recordings are streamed
through it on one CPU thread, so their length does not matter. `scripts/build_vad_model.py` makes the model's file.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choral.audio.recording import Recording
from choral.audio.speech_spans import FRAME_SAMPLES, SpanFinder, SpeechSpan
from choral.common.onnx_session import onnx_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CONTEXT_SAMPLES = 64
PIECE_FRAMES = 512  # 16 s at a time: longer calls take the GIL less often, but outgrow the CPU's caches
STATE_SHAPE = (1, 1, 128)

Float32 = npt.NDArray[np.float32]


def find_speech(recording: Recording, *, threshold: float, min_silence_s: float, pad_s: float) -> list[SpeechSpan]:
    finder = SpeechFinder(threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s)
    pieces = recording.pieces(PIECE_FRAMES * FRAME_SAMPLES)
    return [*(span for samples in pieces for span in finder.push(samples)), *finder.finish()]


def speech_probabilities(recording: Recording) -> Float32:
    """The probability of speech in each 32 ms; the last frame is padded with zeros."""
    detector = VoiceDetector()
    pieces = [detector.predict(samples) for samples in recording.pieces(PIECE_FRAMES * FRAME_SAMPLES)]
    return np.concatenate([np.zeros(0, np.float32), *pieces])


class SpeechFinder:
    """Finds the speech of a recording whose samples arrive in pieces of any size; each span is returned once."""

    def __init__(self, *, threshold: float, min_silence_s: float, pad_s: float) -> None:
        self._detector = VoiceDetector()
        self._spans = SpanFinder(threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s)
        self._remainder = np.zeros(0, np.float32)  # less than a frame
        self._n_samples = 0

    def push(self, samples: Float32) -> list[SpeechSpan]:
        """The spans that became final, in order."""
        self._n_samples += samples.size
        joined = np.concatenate([self._remainder, samples]) if self._remainder.size else samples
        n_whole = joined.size // FRAME_SAMPLES * FRAME_SAMPLES
        self._remainder = joined[n_whole:].copy()
        return self._spans.push(self._detector.predict(joined[:n_whole]).tolist()) if n_whole else []

    def finish(self) -> list[SpeechSpan]:
        """The remaining spans, after the last samples."""
        last = self._detector.predict(self._remainder).tolist() if self._remainder.size else []
        return self._spans.finish(self._n_samples, last)

    @property
    def min_next_start(self) -> int:
        """No span that is still to be returned starts before this sample."""
        return self._spans.min_next_start

    @property
    def open_span(self) -> SpeechSpan | None:
        """The next span to be returned, if it has certainly begun: its start is final, its stop can only grow."""
        return self._spans.open_span


class VoiceDetector:
    """Keeps the model's state between pieces: predictions for all pieces equal those for the whole."""

    def __init__(self) -> None:
        self._state = [np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32)]
        self._context = np.zeros((1, CONTEXT_SAMPLES), np.float32)

    def predict(self, samples: Float32) -> Float32:
        """The probability of speech in each 512 samples. Only the last piece may end within a frame."""
        size = PIECE_FRAMES * FRAME_SAMPLES
        return np.concatenate(
            [self._predict_piece(samples[start : start + size]) for start in range(0, samples.size, size)]
        )

    def _predict_piece(self, samples: Float32) -> Float32:
        frames = _frames(samples)
        inputs = {"samples": frames, "context": self._context, "h": self._state[0], "c": self._state[1]}
        probabilities: Float32
        probabilities, *self._state = _session().run(None, inputs)
        self._context = frames[-1:, -CONTEXT_SAMPLES:].copy()
        return probabilities


def _frames(samples: Float32) -> Float32:
    """[n, 512]: a view of the samples, or a copy padded with zeros if the last frame is incomplete."""
    missing = -samples.size % FRAME_SAMPLES
    return (np.pad(samples, (0, missing)) if missing else samples).reshape(-1, FRAME_SAMPLES)


def load() -> None:
    """Load the network, which the first search would do otherwise."""
    _session()


@cache
def _session() -> InferenceSession:
    return onnx_session(resources.files("choral").joinpath("assets", "silero_vad_v6.onnx").read_bytes())
