"""Reader of whisper.cpp's ggml files: hyperparameters, mel filters, vocabulary and tensors, one after another.

Quantised tensors are blocks of 32 numbers that share a scale and, in the _1 types, an offset. The first 16 numbers of a
block are in the low nibbles of its bytes and the last 16 in the high nibbles; the 5-bit types store the fifth bits of
all 32 in one word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Array, Checkpoint, LazyTensor, Shape, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights.mapped_file import BinaryReader, MappedFile, corrupt

MAGIC = 0x67676D6C.to_bytes(4, "little")

_DIMS = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
    "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels",
)  # fmt: skip
_FLOATS = {0: "float32", 1: "float16"}
BLOCK_SIZE = 32


@dataclass(frozen=True)
class BlockFormat:
    bits: int
    has_offset: bool

    @property
    def n_bytes(self) -> int:
        """Bytes of a block."""
        return 2 + 2 * self.has_offset + BLOCK_SIZE * self.bits // 8


BLOCK_FORMATS = {
    2: BlockFormat(bits=4, has_offset=False),  # q4_0
    3: BlockFormat(bits=4, has_offset=True),  # q4_1
    6: BlockFormat(bits=5, has_offset=False),  # q5_0
    7: BlockFormat(bits=5, has_offset=True),  # q5_1
    8: BlockFormat(bits=8, has_offset=False),  # q8_0
}


def open_ggml(path: Path) -> Checkpoint:
    reader = BinaryReader(MappedFile(path))
    if reader.take(4, "its first word") != MAGIC:
        raise corrupt(path, "it does not begin as a ggml file")
    try:
        dims = ModelDims(**dict(zip(_DIMS, reader.numbers(f"{len(_DIMS)}i", "its header"), strict=True)))
    except ModelCorrupt as error:
        raise corrupt(path, str(error)) from error
    reader.number("i", "its header")  # the type of most tensors; each tensor has its own
    n_mels, n_fft = reader.numbers("2i", "its mel filters")
    reader.skip(4 * n_mels * n_fft, "its mel filters")  # computed by Choral
    vocabulary = _vocabulary(reader, dims)
    entries = {}
    while not reader.at_end:
        name, tensor = _tensor(reader)
        entries[name] = tensor
    heads = alignment_heads.for_model(dims, path.stem)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, vocabulary, path)


def _vocabulary(reader: BinaryReader, dims: ModelDims) -> tuple[bytes, ...] | None:
    """The text tokens; special tokens are not stored, they follow in a fixed order."""
    count = reader.number("i", "its vocabulary")
    if not 0 <= count <= dims.n_vocab:
        raise corrupt(reader.file.path, f"it has {count} tokens of text among {dims.n_vocab}")
    tokens = tuple(reader.take(reader.number("I", "its vocabulary"), "its vocabulary") for _ in range(count))
    return tokens or None


def _tensor(reader: BinaryReader) -> tuple[str, LazyTensor]:
    path = reader.file.path
    n_axes, n_name, type_id = reader.numbers("3i", "the header of a tensor")
    if not 1 <= n_axes <= 4 or not 1 <= n_name <= 256:
        raise corrupt(path, "the header of a tensor is damaged")
    shape = reader.numbers(f"{n_axes}i", "the header of a tensor")[::-1]
    name = reader.take(n_name, "the name of a tensor").decode("utf-8", "replace")
    what = f"the tensor {printable(name)}"
    if min(shape) < 0:
        raise corrupt(path, f"{what} has a negative size")
    target_shape = shape[:1] if name.startswith("encoder.conv") and name.endswith(".bias") else shape
    if math.prod(target_shape) != math.prod(shape):
        raise corrupt(path, f"{what} has the shape {shape}")
    if type_id in _FLOATS:
        n_bytes = math.prod(shape) * (4 if type_id == 0 else 2)
        return name, reader.file.tensor(name, reader.skip(n_bytes, what), _FLOATS[type_id], target_shape)
    if type_id not in BLOCK_FORMATS:
        raise ModelCorrupt(
            f"{path}: {what} has ggml's type {type_id}; Choral reads f32, f16, q4_0, q4_1, q5_0, q5_1 and "
            "q8_0. Fetch the model in one of these."
        )
    if shape[-1] % BLOCK_SIZE:
        raise corrupt(path, f"the rows of {what} are not whole blocks")
    kind = BLOCK_FORMATS[type_id]
    n_bytes = math.prod(shape) // BLOCK_SIZE * kind.n_bytes
    data = reader.file.view(reader.skip(n_bytes, what), n_bytes, what)
    return name, LazyTensor(target_shape, partial(_dequantize, data, kind, target_shape))


def _dequantize(data: Array, kind: BlockFormat, shape: Shape) -> Array:
    """float32 values of the bytes of whole blocks."""
    blocks = data.reshape(-1, kind.n_bytes)
    with np.errstate(all="ignore"):  # damaged scales give wrong values, as damaged floats do
        values = _integers(blocks, kind) * _float16_column(blocks, 0)
        if kind.has_offset:
            values += _float16_column(blocks, 2)
    return values.reshape(shape)


def _integers(blocks: Array, kind: BlockFormat) -> Array:
    """The integers of each block, as int8."""
    if kind.bits == 8:
        return blocks[:, 2:].view(np.int8)
    values = _nibbles(blocks[:, -16:])
    if kind.bits == 5:
        values |= _fifth_bits(blocks[:, -20:-16])
    signed: Array = values.view(np.int8)
    return signed if kind.has_offset else signed - np.int8(2 ** (kind.bits - 1))


def _float16_column(blocks: Array, start: int) -> Array:
    """One float16 of each block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Array) -> Array:
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(words: Array) -> Array:
    return np.unpackbits(words, axis=1, bitorder="little") << 4
