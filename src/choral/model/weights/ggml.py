"""whisper.cpp's single files: hyperparameters, mel filters, vocabulary and tensors, one after another."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Checkpoint, LazyTensor, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights.ggml_blocks import BLOCK, BLOCK_TYPES, dequantized
from choral.model.weights.mapped_file import MappedFile, Reader, corrupt

MAGIC = 0x67676D6C.to_bytes(4, "little")

_DIMS = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
    "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels",
)  # fmt: skip
_FLOATS = {0: "float32", 1: "float16"}


def open_ggml(path: Path) -> Checkpoint:
    reader = Reader(MappedFile(path))
    if reader.take(4, "its first word") != MAGIC:
        raise corrupt(path, "it does not begin as a ggml file")
    try:
        dims = ModelDims(**dict(zip(_DIMS, reader.numbers(f"{len(_DIMS)}i", "its header"), strict=True)))
    except ModelCorrupt as error:
        raise corrupt(path, str(error)) from error
    reader.number("i", "its header")  # the type of most tensors; each tells its own
    n_mels, n_fft = reader.numbers("2i", "its mel filters")
    reader.skip(4 * n_mels * n_fft, "its mel filters")  # Choral computes them
    vocabulary = _vocabulary(reader, dims)
    entries = {}
    while not reader.at_end:
        name, tensor = _tensor(reader)
        entries[name] = tensor
    heads = alignment_heads.for_model(dims, path.stem)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, vocabulary, path)


def _vocabulary(reader: Reader, dims: ModelDims) -> tuple[bytes, ...] | None:
    """The tokens of text; special tokens are not written, they follow by rule."""
    count = reader.number("i", "its vocabulary")
    if not 0 <= count <= dims.n_vocab:
        raise corrupt(reader.file.path, f"it tells {count} tokens of text among {dims.n_vocab}")
    tokens = tuple(reader.take(reader.number("I", "its vocabulary"), "its vocabulary") for _ in range(count))
    return tokens or None


def _tensor(reader: Reader) -> tuple[str, LazyTensor]:
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
    if type_id not in BLOCK_TYPES:
        raise ModelCorrupt(
            f"{path}: {what} has ggml's type {type_id}; Choral reads f32, f16, q4_0, q4_1, q5_0, q5_1 and "
            "q8_0. Fetch the model in one of these."
        )
    if shape[-1] % BLOCK:
        raise corrupt(path, f"the rows of {what} are not whole blocks")
    kind = BLOCK_TYPES[type_id]
    n_bytes = math.prod(shape) // BLOCK * kind.n_bytes
    data = reader.file.view(reader.skip(n_bytes, what), n_bytes, what)
    return name, LazyTensor(target_shape, partial(dequantized, data, kind, target_shape))
