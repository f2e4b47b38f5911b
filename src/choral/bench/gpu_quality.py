"""What fewer bits cost: real speech through a real model on the GPU, against float32 on the CPU.

For each compute type: how many clips have exactly the tokens of float32, the word error rate, and how many clips did
not get worse by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH, WINDOW_SAMPLES
from choral.bench.wer import Score
from choral.config import ComputeType, EngineSettings
from choral.engine.factory import torch_engine
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

DEFAULTS = (-1,)  # the tokens that Whisper suppresses unless told otherwise


@dataclass(frozen=True)
class Speech:
    samples: npt.NDArray[np.float32]  # at most 30 s
    text: str


@dataclass(frozen=True)
class Quality:
    compute_type: str
    device: str
    n_clips: int
    same_tokens: int  # clips, as in float32 on the CPU
    not_worse: int  # clips
    wer_percent: float


def measure(
    checkpoint: Checkpoint,
    speech: Sequence[Speech],
    device: str,
    compute_types: Sequence[ComputeType],
    score: Callable[[str, str], Score],
) -> list[Quality]:
    """The first is float32 on the CPU, which the others are compared with."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    clips = [clip for clip in speech if clip.samples.size <= WINDOW_SAMPLES]
    reference = decoded(checkpoint, tokenizer, clips, "cpu", "float32")
    found = []
    for own_device, compute_type in [("cpu", "float32"), *((device, each) for each in compute_types)]:
        results = reference if own_device == "cpu" else decoded(checkpoint, tokenizer, clips, own_device, compute_type)
        scores = [score(clip.text, tokenizer.decode(own.tokens)) for clip, own in zip(clips, results, strict=True)]
        if own_device == "cpu":
            reference_scores = scores
        total = sum(scores, Score(0, 0))
        same = sum(mine.tokens == theirs.tokens for mine, theirs in zip(results, reference, strict=True))
        not_worse = sum(mine.n_errors <= theirs.n_errors for mine, theirs in zip(scores, reference_scores, strict=True))
        found.append(Quality(compute_type, own_device, len(clips), same, not_worse, total.percent))
    return found


def decoded(
    checkpoint: Checkpoint, tokenizer: Tokenizer, clips: Sequence[Speech], device: str, compute_type: ComputeType
) -> list[Decoded]:
    engine = torch_engine(checkpoint, tokenizer, EngineSettings(device=device, compute_type=compute_type))
    language = "en" if tokenizer.is_multilingual else None
    params = DecodeParams(language=language, suppress_tokens=tokenizer.suppressed(DEFAULTS))
    try:
        pending = [engine.submit(Window(window_of(clip), params)) for clip in clips]
        return [each.result() for each in pending]
    finally:
        engine.close()


def window_of(clip: Speech) -> WindowAudio:
    return WindowAudio(clip.samples, lead=0, n_mel_frames=-(-clip.samples.size // HOP_LENGTH), mel_peak=None)
