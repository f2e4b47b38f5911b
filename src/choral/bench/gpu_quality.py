"""What lower precision costs: real speech through a real model on the GPU, compared with float32 on the CPU.

For each compute type: the clips with exactly the tokens of float32, the word error rate, and the clips that it did not
make worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from choral.audio.constants import HOP_LENGTH, WINDOW_SAMPLES
from choral.bench.clips import AudioClip
from choral.bench.wer import Score
from choral.config import ComputeType, EngineSettings
from choral.engine.factory import torch_engine
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

DEFAULT_SUPPRESSED = (-1,)  # Whisper's default set


@dataclass(frozen=True)
class Quality:
    compute_type: str
    device: str
    n_clips: int
    same_tokens: int  # clips with the tokens of float32 on the CPU
    not_worse: int  # clips with no more errors
    wer_percent: float


def measure(
    checkpoint: Checkpoint,
    clips: Sequence[AudioClip],
    device: str,
    compute_types: Sequence[ComputeType],
    score: Callable[[str, str], Score],
) -> list[Quality]:
    """The first result is float32 on the CPU, the reference of the others."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    clips = [clip for clip in clips if clip.samples.size <= WINDOW_SAMPLES]
    reference = decode(checkpoint, tokenizer, clips, "cpu", "float32")

    def scores_of(results: Sequence[Decoded]) -> list[Score]:
        pairs = zip(clips, results, strict=True)
        return [score(clip.text or "", tokenizer.decode(result.tokens)) for clip, result in pairs]

    def quality(results: Sequence[Decoded], device: str, compute_type: str) -> Quality:
        scores = scores_of(results)
        n_same = sum(one.tokens == other.tokens for one, other in zip(results, reference, strict=True))
        n_not_worse = sum(one.n_errors <= other.n_errors for one, other in zip(scores, reference_scores, strict=True))
        return Quality(compute_type, device, len(clips), n_same, n_not_worse, sum(scores, Score(0)).percent)

    reference_scores = scores_of(reference)
    return [quality(reference, "cpu", "float32")] + [
        quality(decode(checkpoint, tokenizer, clips, device, compute_type), device, compute_type)
        for compute_type in compute_types
    ]


def decode(
    checkpoint: Checkpoint, tokenizer: Tokenizer, clips: Sequence[AudioClip], device: str, compute_type: ComputeType
) -> list[Decoded]:
    engine = torch_engine(checkpoint, tokenizer, EngineSettings(device=device, compute_type=compute_type))
    language = "en" if tokenizer.is_multilingual else None
    params = DecodeParams(language=language, suppress_tokens=tokenizer.suppressed(DEFAULT_SUPPRESSED))
    try:
        pending = [engine.submit(Window(window_of(clip), params)) for clip in clips]
        return [each.result() for each in pending]
    finally:
        engine.close()


def window_of(clip: AudioClip) -> WindowAudio:
    return WindowAudio(clip.samples, lead=0, n_mel_frames=-(-clip.samples.size // HOP_LENGTH), mel_peak=None)
