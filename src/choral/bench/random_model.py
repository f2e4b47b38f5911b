"""Models with random weights, to measure without a download: their text is nonsense, their speed is real.

`nano` is so small that the engine's overhead is most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from choral.audio.constants import WINDOW_FRAMES
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_plan import require_installed
from choral.engine.factory import torch_engine
from choral.errors import UsageError
from choral.model.checkpoint import AUDIO_POSITIONS, Array, Checkpoint, expected_shapes, sinusoids
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

N_TEXT_CTX = 448
STD = 0.02
BLOCK = 1_000_003  # random numbers that all tensors share, each from another offset


def _dims(
    width: int, n_heads: int, n_encoder_layers: int, n_decoder_layers: int, n_mels: int = 80, n_vocab: int = 51_864
) -> ModelDims:
    return ModelDims(
        n_mels=n_mels,
        n_audio_ctx=WINDOW_FRAMES,
        n_audio_state=width,
        n_audio_head=n_heads,
        n_audio_layer=n_encoder_layers,
        n_vocab=n_vocab,
        n_text_ctx=N_TEXT_CTX,
        n_text_state=width,
        n_text_head=n_heads,
        n_text_layer=n_decoder_layers,
    )


SHAPES = {
    "nano": _dims(64, 1, 1, 1),
    "tiny": _dims(384, 6, 4, 4),
    "base": _dims(512, 8, 6, 6),
    "small": _dims(768, 12, 12, 12),
    "large-v3-turbo": _dims(1280, 20, 32, 4, n_mels=128, n_vocab=51_866),
    "large-v3": _dims(1280, 20, 32, 32, n_mels=128, n_vocab=51_866),
}


class RandomTensors(Mapping[str, Array]):
    """Reproducible by name; the weights of norms are 1."""

    def __init__(self, dims: ModelDims) -> None:
        self._dims, self._shapes = dims, expected_shapes(dims)
        self._indices = {name: index for index, name in enumerate(self._shapes)}

    def __getitem__(self, name: str) -> Array:
        shape = self._shapes[name]
        if name == AUDIO_POSITIONS:
            return sinusoids(self._dims.n_audio_ctx, self._dims.n_audio_state)
        if name.endswith(("ln.weight", "ln_post.weight")):
            return np.ones(shape, dtype=np.float32)
        return np.resize(np.roll(random_block(), 997 * self._indices[name]), shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@cache
def random_block() -> Array:
    return np.random.default_rng(0).normal(0, STD, BLOCK).astype(np.float32)


def random_checkpoint(shape: str) -> Checkpoint:
    dims = SHAPES[shape]
    return Checkpoint(
        dims=dims,
        tensors=RandomTensors(dims),
        alignment_heads=((0, 0),),
        vocabulary=None,
        path=Path(f"random weights in the shape of {shape}"),
    )


def random_engine(shape: str, settings: EngineSettings) -> Engine:
    return random_engine_and_tokenizer(shape, settings)[0]


def random_engine_and_tokenizer(shape: str, settings: EngineSettings) -> tuple[Engine, Tokenizer]:
    if settings.engine == "ctranslate2":
        raise UsageError("random weights run only on the torch engine: use --engine torch")
    require_installed("torch")
    checkpoint = random_checkpoint(shape)
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims)
    return torch_engine(checkpoint, tokenizer, settings), tokenizer
