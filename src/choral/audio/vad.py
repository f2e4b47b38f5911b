"""Voice activity detection: Silero's model over a recording, and speech spans from its probabilities.

The model takes frames of 512 samples (32 ms) with the 64 samples before them. Recordings are streamed through it, so
their length does not matter. It has two parts: features of each frame, two thirds of the work, which are computed on
several threads where a recording is long and cores are idle; and a recurrent layer, which takes them in order on one.
`scripts/build_vad_model.py` makes the files of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib import resources
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choral.audio.recording import Recording
from choral.audio.speech_spans import FRAME_SAMPLES, SpeechSpan, speech_spans
from choral.common.onnx_session import onnx_session
from choral.common.ordered_map import ordered_map
from choral.common.spare_cores import n_threads_for

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CONTEXT_SAMPLES = 64
PIECE_FRAMES = 512  # 16 s at a time: longer calls take the GIL less often, but outgrow the CPU's caches
PIECE_SAMPLES = PIECE_FRAMES * FRAME_SAMPLES
N_FEATURES = 128
STATE_SHAPE = (1, 1, N_FEATURES)
MAX_FEATURES_AHEAD = 4  # pieces that wait for the recurrent layer, besides those of the threads

Float32 = npt.NDArray[np.float32]


def find_speech(recording: Recording, *, threshold: float, min_silence_s: float, pad_s: float) -> list[SpeechSpan]:
    probabilities = speech_probabilities(recording)
    return speech_spans(
        probabilities, recording.n_samples, threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s
    )


def speech_probabilities(recording: Recording) -> Float32:
    """The probability of speech in each 32 ms; the last frame is padded with zeros."""
    return np.concatenate([np.zeros(0, np.float32), *probability_pieces(recording)])


def probability_pieces(recording: Recording) -> Iterator[Float32]:
    """The same, 16 s at a time, as the recording is decoded."""
    detector, start = VoiceDetector(), 0
    while (n_threads := n_threads_for(recording.estimated_duration)) is None:  # known soon
        samples = recording.samples(start, start + PIECE_SAMPLES)
        if not samples.size:
            return
        yield detector.predict(samples)
        start += samples.size
    if n_threads > 1:
        yield from _parallel_pieces(recording, detector, start, n_threads)
        return
    while (samples := recording.samples(start, start + PIECE_SAMPLES)).size:
        yield detector.predict(samples)
        start += samples.size


def _parallel_pieces(recording: Recording, detector: VoiceDetector, start: int, n_threads: int) -> Iterator[Float32]:
    """From sample `start` on, where the detector is. The threads wait for the samples that they need."""
    features = ordered_map(
        partial(_piece_features, recording),
        count(start, PIECE_SAMPLES),
        n_threads=n_threads,
        max_ahead=2 * n_threads,
        name="choral-vad",
    )
    probabilities = ordered_map(
        detector.predict_features,
        takewhile(len, features),  # empty after the end
        n_threads=1,
        max_ahead=MAX_FEATURES_AHEAD,
        name="choral-vad-recurrent",
    )
    try:
        yield from probabilities
    finally:
        probabilities.close()
        features.close()


def _piece_features(recording: Recording, start: int) -> Float32:
    first = max(0, start - CONTEXT_SAMPLES)
    samples = recording.samples(first, start + PIECE_SAMPLES)
    if samples.size <= start - first:
        return np.zeros((0, N_FEATURES), np.float32)
    context = np.zeros((1, CONTEXT_SAMPLES), np.float32) if start == 0 else samples[None, :CONTEXT_SAMPLES]
    return frame_features(_frames(samples[start - first :]), context)


class VoiceDetector:
    """Keeps the model's state between pieces: predictions for all pieces equal those for the whole.

    Use either `predict` or `predict_features` after the first call of the latter.
    """

    def __init__(self) -> None:
        self._state = [np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32)]
        self._context = np.zeros((1, CONTEXT_SAMPLES), np.float32)

    def predict(self, samples: Float32) -> Float32:
        """The probability of speech in each 512 samples. Only the last piece may end within a frame."""
        starts = range(0, samples.size, PIECE_SAMPLES)
        return np.concatenate([self._predict_piece(samples[start : start + PIECE_SAMPLES]) for start in starts])

    def predict_features(self, features: Float32) -> Float32:
        """The same from the features of the next frames."""
        inputs = {"features": features, "h": self._state[0], "c": self._state[1]}
        probabilities: Float32
        probabilities, *self._state = _session("recurrent").run(None, inputs)
        return probabilities

    def _predict_piece(self, samples: Float32) -> Float32:
        frames = _frames(samples)
        features = frame_features(frames, self._context)
        self._context = frames[-1:, -CONTEXT_SAMPLES:].copy()
        return self.predict_features(features)


def frame_features(frames: Float32, context: Float32) -> Float32:
    """[n, 128] of [n, 512] samples and the [1, 64] before them."""
    features: Float32
    (features,) = _session("features").run(None, {"samples": frames, "context": context})
    return features


def _frames(samples: Float32) -> Float32:
    """[n, 512]: a view of the samples, or a copy padded with zeros if the last frame is incomplete."""
    missing = -samples.size % FRAME_SAMPLES
    return (np.pad(samples, (0, missing)) if missing else samples).reshape(-1, FRAME_SAMPLES)


def load() -> None:
    """Load the networks, which the first search would do otherwise."""
    for part in ("features", "recurrent"):
        _session(part)


@cache
def _session(part: str) -> InferenceSession:
    return onnx_session(resources.files("choral").joinpath("assets", f"silero_vad_v6_{part}.onnx").read_bytes())
