"""Where there is speech: Silero's voice detector over a recording, and spans of speech from its probabilities.

The detector hears frames of 512 samples (32 ms), each with the 64 samples before it, and remembers what it heard:
the recording is streamed through it, so its length does not matter. One CPU thread.
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

HYSTERESIS = 0.15  # speech goes on until the probability is this far below the threshold
LOWEST_END_THRESHOLD = 0.01
MIN_SPEECH_S = 0.1
PAD_S = 0.2  # kept on both sides: the detector starts late and ends early

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """Speech from sample `start` up to, not including, sample `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Speech:
    spans: tuple[Span, ...]
    probabilities: Float32  # one for each 512 samples


def find_speech(recording: Recording, *, threshold: float, min_silence_s: float, pad_s: float = PAD_S) -> Speech:
    probabilities = speech_probabilities(recording)
    spans = speech_spans(
        probabilities, recording.n_samples, threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s
    )
    return Speech(tuple(spans), probabilities)


def speech_probabilities(recording: Recording) -> Float32:
    """How likely there is speech, for each 32 ms; the last frame is filled up with zeros."""
    session = _session()
    state = [np.zeros(STATE_SHAPE, np.float32), np.zeros(STATE_SHAPE, np.float32)]
    probabilities = [np.zeros(0, np.float32)]
    context = np.zeros(CONTEXT_SAMPLES, np.float32)
    for samples in recording.pieces(PIECE_FRAMES * FRAME_SAMPLES):
        frames = _frames(context, samples)
        heard, *state = session.run(None, {"input": frames, "h": state[0], "c": state[1]})
        probabilities.append(heard)
        context = frames[-1, -CONTEXT_SAMPLES:]
    return np.concatenate(probabilities)


def speech_spans(
    probabilities: Float32,
    n_samples: int,
    *,
    threshold: float,
    min_silence_s: float,
    min_speech_s: float = MIN_SPEECH_S,
    pad_s: float = PAD_S,
) -> list[Span]:
    """Spans that start at `threshold` and end where it stays quiet for `min_silence_s`, padded, in order."""
    end_threshold = max(threshold - HYSTERESIS, LOWEST_END_THRESHOLD)
    min_silence_frames = min_silence_s * SAMPLE_RATE / FRAME_SAMPLES
    min_speech_samples = min_speech_s * SAMPLE_RATE
    spans = (
        Span(first * FRAME_SAMPLES, min(stop * FRAME_SAMPLES, n_samples))
        for first, stop in _runs(probabilities, threshold, end_threshold, min_silence_frames)
    )
    long_enough = [span for span in spans if span.stop - span.start >= min_speech_samples]
    return _padded(long_enough, int(pad_s * SAMPLE_RATE), n_samples)


def _runs(
    probabilities: Float32, threshold: float, end_threshold: float, min_silence_frames: float
) -> Iterator[tuple[int, int]]:
    """First frame and the frame behind the last of each stretch of speech."""
    first: int | None = None  # where the speech began, while there is some
    quiet_from: int | None = None  # where it may have ended
    for frame, probability in enumerate(probabilities.tolist()):
        if probability >= threshold:
            first = frame if first is None else first
            quiet_from = None
        elif first is not None and probability < end_threshold:
            quiet_from = frame if quiet_from is None else quiet_from
            if frame - quiet_from >= min_silence_frames:
                yield first, quiet_from
                first = quiet_from = None
    if first is not None:
        yield first, len(probabilities)


def _padded(spans: list[Span], pad: int, n_samples: int) -> list[Span]:
    """Each span with up to `pad` samples on both sides; neighbours share the pause between them."""
    stops = [0, *(span.stop for span in spans)]
    starts = [*(span.start for span in spans), n_samples]
    # Before the first span and behind the last there is no neighbour to share with.
    pauses = [start - stop for start, stop in zip(starts, stops, strict=True)]
    shares = [min(pad, pause // 2) for pause in pauses]
    shares[0], shares[-1] = min(pad, pauses[0]), min(pad, pauses[-1])
    return [Span(span.start - shares[i], span.stop + shares[i + 1]) for i, span in enumerate(spans)]


def _frames(context: Float32, samples: Float32) -> Float32:
    """[n, 576]: frames with their context; the last is filled up with zeros."""
    n_frames = -(-samples.size // FRAME_SAMPLES)
    padded = np.zeros(CONTEXT_SAMPLES + n_frames * FRAME_SAMPLES, np.float32)
    padded[:CONTEXT_SAMPLES] = context
    padded[CONTEXT_SAMPLES : CONTEXT_SAMPLES + samples.size] = samples
    views = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT_SAMPLES + FRAME_SAMPLES)
    return np.ascontiguousarray(views[::FRAME_SAMPLES])


@cache
def _session() -> InferenceSession:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would leave a file behind and call home
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it would keep the memory of the longest piece
    options.log_severity_level = 3
    model = resources.files("choral").joinpath("assets", "silero_vad_v6.onnx").read_bytes()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
