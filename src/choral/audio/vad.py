"""Voice activity detection: Silero's model over a recording, and speech spans from its probabilities.

The model is recurrent and takes frames of 512 samples (32 ms) with the 64 samples before them. Recordings are streamed
through it on one CPU thread, so their length does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FRAME_SAMPLES = 512
CONTEXT_SAMPLES = 64
PIECE_FRAMES = 2_048  # 65 s at a time
STATE_SHAPE = (1, 1, 128)

HYSTERESIS = 0.15  # speech ends where the probability falls this far below the threshold
MIN_END_THRESHOLD = 0.01
MIN_SPEECH_S = 0.1

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SpeechSpan:
    """Samples `start` up to, not including, `stop`."""

    start: int
    stop: int


def find_speech(recording: Recording, *, threshold: float, min_silence_s: float, pad_s: float) -> list[SpeechSpan]:
    return speech_spans(
        speech_probabilities(recording),
        recording.n_samples,
        threshold=threshold,
        min_silence_s=min_silence_s,
        pad_s=pad_s,
    )


def speech_probabilities(recording: Recording) -> Float32:
    """The probability of speech in each 32 ms; the last frame is padded with zeros."""
    detector = VoiceDetector()
    pieces = [detector.predict(samples) for samples in recording.pieces(PIECE_FRAMES * FRAME_SAMPLES)]
    return np.concatenate([np.zeros(0, np.float32), *pieces])


class VoiceDetector:
    """Keeps the model's state between pieces: predictions for all pieces equal those for the whole."""

    def __init__(self) -> None:
        self._state = [np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32)]
        self._context = np.zeros(CONTEXT_SAMPLES, np.float32)

    def predict(self, samples: Float32) -> Float32:
        """The probability of speech in each 512 samples. Only the last piece may end within a frame."""
        frames = _frames(self._context, samples)
        probabilities: Float32
        probabilities, *self._state = _session().run(None, {"input": frames, "h": self._state[0], "c": self._state[1]})
        self._context = frames[-1, -CONTEXT_SAMPLES:]
        return probabilities


def speech_spans(
    probabilities: Float32,
    n_samples: int,
    *,
    threshold: float,
    min_silence_s: float,
    pad_s: float,
    min_speech_s: float = MIN_SPEECH_S,
) -> list[SpeechSpan]:
    """Spans in order: each starts at `threshold`, ends where silence lasts `min_silence_s`, and is padded."""
    end_threshold = end_threshold_of(threshold)
    min_silence_frames = min_silence_s * SAMPLE_RATE / FRAME_SAMPLES
    min_speech_samples = min_speech_s * SAMPLE_RATE
    spans = (
        SpeechSpan(first * FRAME_SAMPLES, min(stop * FRAME_SAMPLES, n_samples))
        for first, stop in _runs(probabilities, threshold, end_threshold, min_silence_frames)
    )
    long_enough = [span for span in spans if span.stop - span.start >= min_speech_samples]
    return _pad_spans(long_enough, int(pad_s * SAMPLE_RATE), n_samples)


def _runs(
    probabilities: Float32, threshold: float, end_threshold: float, min_silence_frames: float
) -> Iterator[tuple[int, int]]:
    """First frame and the frame after the last of each run of speech."""
    tracker = SpeechTracker(threshold, end_threshold, min_silence_frames)
    for probability in probabilities.tolist():
        if (run := tracker.step(probability)) is not None:
            yield run
    if tracker.first is not None:
        yield tracker.first, len(probabilities)


class SpeechTracker:
    """Finds runs of speech, frame by frame."""

    def __init__(self, threshold: float, end_threshold: float, min_silence_frames: float) -> None:
        self._threshold, self._end_threshold = threshold, end_threshold
        self._min_silence_frames = min_silence_frames
        self.n_frames = 0
        self.first: int | None = None  # of the current run of speech
        self.quiet_from: int | None = None  # where the current run may have ended

    def step(self, probability: float) -> tuple[int, int] | None:
        """The run that ends with this frame, if one does: its first frame and the frame after its last."""
        frame, self.n_frames = self.n_frames, self.n_frames + 1
        if probability >= self._threshold:
            self.first = frame if self.first is None else self.first
            self.quiet_from = None
        elif self.first is not None and probability < self._end_threshold:
            self.quiet_from = frame if self.quiet_from is None else self.quiet_from
            if frame - self.quiet_from >= self._min_silence_frames:
                run = self.first, self.quiet_from
                self.first = self.quiet_from = None
                return run
        return None


def end_threshold_of(threshold: float) -> float:
    return max(threshold - HYSTERESIS, MIN_END_THRESHOLD)


def _pad_spans(spans: list[SpeechSpan], pad: int, n_samples: int) -> list[SpeechSpan]:
    """Each span with up to `pad` more samples on both sides; neighbours share the pause between them."""
    stops = [0, *(span.stop for span in spans)]
    starts = [*(span.start for span in spans), n_samples]
    # There is no neighbour to share with before the first span and after the last.
    pauses = [start - stop for start, stop in zip(starts, stops, strict=True)]
    shares = [min(pad, pause // 2) for pause in pauses]
    shares[0], shares[-1] = min(pad, pauses[0]), min(pad, pauses[-1])
    return [SpeechSpan(span.start - shares[i], span.stop + shares[i + 1]) for i, span in enumerate(spans)]


def _frames(context: Float32, samples: Float32) -> Float32:
    """[n, 576]: frames with their context; the last is padded with zeros."""
    n_frames = -(-samples.size // FRAME_SAMPLES)
    padded = np.zeros(CONTEXT_SAMPLES + n_frames * FRAME_SAMPLES, np.float32)
    padded[:CONTEXT_SAMPLES] = context
    padded[CONTEXT_SAMPLES : CONTEXT_SAMPLES + samples.size] = samples
    views = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT_SAMPLES + FRAME_SAMPLES)
    return np.ascontiguousarray(views[::FRAME_SAMPLES])


@cache
def _session() -> InferenceSession:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # telemetry writes a file and sends data
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # the arena would keep the memory of the longest piece
    options.log_severity_level = 3
    model = resources.files("choral").joinpath("assets", "silero_vad_v6.onnx").read_bytes()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
