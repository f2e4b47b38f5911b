"""A model's dims and weights, independent of the file format they came from.

Tensors have OpenAI's parameter names and are read on access, as read-only views of the mapped file where the format
allows it: copy before writing. `validate` checks names and shapes only, so it reads no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.errors import ModelCorrupt
from choral.model.dims import ModelDims

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

AUDIO_POSITIONS = "encoder.positional_embedding"


@dataclass(frozen=True)
class LazyTensor:
    shape: Shape
    load: Callable[[], Array]


class LazyTensors(Mapping[str, Array]):
    """Tensors by name; each access reads the tensor again, so nothing is kept in memory."""

    def __init__(self, entries: Mapping[str, LazyTensor]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Array:
        return self._entries[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> Shape:
        return self._entries[name].shape


@dataclass(frozen=True)
class Checkpoint:
    dims: ModelDims
    tensors: Mapping[str, Array]  # OpenAI's names; float16 or float32
    alignment_heads: tuple[tuple[int, int], ...]  # (decoder layer, head)
    vocabulary: tuple[bytes, ...] | None  # by token id, where the file has one; special tokens by name
    path: Path

    def validate(self) -> None:
        """Raise `ModelCorrupt` unless the tensors have exactly the names and shapes of these dims."""
        expected = expected_shapes(self.dims)
        for name, shape in expected.items():
            if name not in self.tensors:
                raise ModelCorrupt(f"{self.path}: the tensor {name} is missing. Fetch the model again.")
            actual = self._shape(name)
            if actual != shape:
                raise ModelCorrupt(
                    f"{self.path}: the tensor {name} has the shape {actual} where a model of this size has {shape}. "
                    "Fetch the model again."
                )
        for name in self.tensors:
            if name not in expected:
                raise ModelCorrupt(
                    f"{self.path}: the tensor {printable(name)} is not part of Whisper. If this is a fine-tune, "
                    "merge its adapters into the model and save it again."
                )

    def _shape(self, name: str) -> Shape:
        tensors = self.tensors
        return tensors.shape(name) if isinstance(tensors, LazyTensors) else tensors[name].shape


def printable(name: str) -> str:
    """A name from a possibly damaged file, safe to print in a message."""
    return "".join(character if character.isprintable() else "?" for character in name[:100])


def with_audio_positions(entries: Mapping[str, LazyTensor], dims: ModelDims) -> LazyTensors:
    """The tensors, with the encoder's positional embedding computed where the file lacks it."""
    shape = (dims.n_audio_ctx, dims.n_audio_state)
    computed = LazyTensor(shape, lambda: sinusoids(*shape))
    return LazyTensors({AUDIO_POSITIONS: computed, **entries})


def sinusoids(length: int, channels: int) -> Array:
    """Sines, then cosines, of each position, with wavelengths from 2π to 10,000·2π in geometric progression."""
    half = channels // 2
    frequencies = np.exp(-np.log(10_000.0) / (half - 1) * np.arange(half))
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def expected_shapes(dims: ModelDims) -> dict[str, Shape]:
    width = dims.n_audio_state
    shapes: dict[str, Shape] = {
        AUDIO_POSITIONS: (dims.n_audio_ctx, width),
        "encoder.conv1.weight": (width, dims.n_mels, 3),
        "encoder.conv1.bias": (width,),
        "encoder.conv2.weight": (width, width, 3),
        "encoder.conv2.bias": (width,),
        "encoder.ln_post.weight": (width,),
        "encoder.ln_post.bias": (width,),
        "decoder.token_embedding.weight": (dims.n_vocab, width),
        "decoder.positional_embedding": (dims.n_text_ctx, width),
        "decoder.ln.weight": (width,),
        "decoder.ln.bias": (width,),
    }
    for layer in range(dims.n_audio_layer):
        shapes |= _block_shapes(f"encoder.blocks.{layer}", width, ("attn",))
    for layer in range(dims.n_text_layer):
        shapes |= _block_shapes(f"decoder.blocks.{layer}", width, ("attn", "cross_attn"))
    return shapes


def _block_shapes(block: str, width: int, attentions: tuple[str, ...]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        f"{block}.mlp.0.weight": (4 * width, width),
        f"{block}.mlp.0.bias": (4 * width,),
        f"{block}.mlp.2.weight": (width, 4 * width),
        f"{block}.mlp.2.bias": (width,),
        f"{block}.mlp_ln.weight": (width,),
        f"{block}.mlp_ln.bias": (width,),
    }
    for attention in attentions:
        for part in ("query", "key", "value", "out"):
            shapes[f"{block}.{attention}.{part}.weight"] = (width, width)
            if part != "key":  # a bias of the keys would shift all scores of a query equally
                shapes[f"{block}.{attention}.{part}.bias"] = (width,)
        shapes[f"{block}.{attention}_ln.weight"] = (width,)
        shapes[f"{block}.{attention}_ln.bias"] = (width,)
    return shapes
