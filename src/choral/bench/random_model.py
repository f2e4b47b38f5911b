"""Models with random weights, to measure without a download: what they write is nonsense, how long it takes is not.

`nano` is so small that the engine's own work is most of the time: it shows how the engine grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from choral.audio.constants import WINDOW_FRAMES
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.factory import pick_engine, torch_engine
from choral.errors import UsageError
from choral.model.checkpoint import AUDIO_POSITIONS, Array, Checkpoint, expected_shapes, sinusoids
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer

SHAPES = {"nano": (64, 1, 1), "tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}  # width, heads, layers
N_MELS, N_VOCAB, N_TEXT_CTX = 80, 51_864, 448
SPREAD = 0.02


class RandomTensors(Mapping[str, Array]):
    """The same numbers for the same name every time; norms leave everything as it is."""

    def __init__(self, dims: ModelDims) -> None:
        self._dims, self._shapes = dims, expected_shapes(dims)

    def __getitem__(self, name: str) -> Array:
        shape = self._shapes[name]
        if name == AUDIO_POSITIONS:
            return sinusoids(self._dims.n_audio_ctx, self._dims.n_audio_state)
        if name.endswith(("ln.weight", "ln_post.weight")):
            return np.ones(shape, dtype=np.float32)
        seed = list(self._shapes).index(name)
        return np.random.default_rng(seed).normal(0, SPREAD, shape).astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def random_engine(shape: str, settings: EngineSettings) -> Engine:
    if pick_engine(settings) != "torch":
        raise UsageError("random weights run on the torch engine alone: use --engine torch")
    dims = dims_of(shape)
    checkpoint = Checkpoint(
        dims=dims,
        tensors=RandomTensors(dims),
        alignment_heads=((0, 0),),
        vocabulary=None,
        path=Path(f"random weights in the shape of {shape}"),
    )
    return torch_engine(checkpoint, Tokenizer.for_checkpoint(dims), settings)


def dims_of(shape: str) -> ModelDims:
    width, n_heads, n_layers = SHAPES[shape]
    return ModelDims(
        n_mels=N_MELS,
        n_audio_ctx=WINDOW_FRAMES,
        n_audio_state=width,
        n_audio_head=n_heads,
        n_audio_layer=n_layers,
        n_vocab=N_VOCAB,
        n_text_ctx=N_TEXT_CTX,
        n_text_state=width,
        n_text_head=n_heads,
        n_text_layer=n_layers,
    )
