"""Is a window's result on a GPU the same alone and in a crowd? Tokens and log-probabilities are compared to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE
from choral.config import ComputeType, EngineSettings
from choral.engine.factory import torch_engine
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

N_WINDOWS, N_CROWDS = 65, 4
MAX_TOKENS = 40
PROMPTS = ((), (50, 60, 70), tuple(range(50, 90)))


def count_different(
    checkpoint: Checkpoint, audios: Sequence[WindowAudio], device: str, compute_type: ComputeType
) -> tuple[int, int]:
    """How many results in crowds, of how many, differ from those of the same windows one after another."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    engine = torch_engine(checkpoint, tokenizer, EngineSettings(device=device, compute_type=compute_type, draft="none"))
    windows = [Window(audio, _params(index)) for index, audio in enumerate(audios)]
    order = np.random.default_rng(0)
    n_different = 0
    try:
        alone = [engine.submit(window).result() for window in windows]
        for _ in range(N_CROWDS):
            engine.clear_cache()
            pending = {int(index): engine.submit(windows[index]) for index in order.permutation(len(windows))}
            n_different += sum(_bits(pending[index].result()) != _bits(each) for index, each in enumerate(alone))
    finally:
        engine.close()
    return n_different, N_CROWDS * len(windows)


def noise_windows() -> list[WindowAudio]:
    """Noise of 3 to 29 s: random weights write the same nonsense about anything."""
    random = np.random.default_rng(1)
    lengths = [(3 + index % 27) * SAMPLE_RATE for index in range(N_WINDOWS)]
    samples = [random.normal(0, 0.05, length).astype(np.float32) for length in lengths]
    return [WindowAudio(each, lead=0, n_mel_frames=each.size // HOP_LENGTH, mel_peak=None) for each in samples]


def _params(index: int) -> DecodeParams:
    prompt = PROMPTS[index % len(PROMPTS)]
    return DecodeParams(language="en", max_tokens=MAX_TOKENS, token_logprobs=True, prompt=prompt)


def _bits(decoded: Decoded) -> tuple[object, ...]:
    return decoded.tokens, decoded.token_logprobs, decoded.avg_logprob, decoded.no_speech_prob
