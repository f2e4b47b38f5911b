"""Converts any checkpoint to a folder that CTranslate2 loads: model.bin, config.json and vocabulary.json.

Tensors are written one at a time in the checkpoint's float16 or float32; CTranslate2 quantises while it loads. The
output is byte for byte that of CTranslate2's own converter. Neither torch nor ctranslate2 is needed.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from choral.model.checkpoint import Array, Checkpoint, Shape
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights.ctranslate2_folder import KEY_BIAS, SPECIFICATION, layout
from choral.model.weights.vocabulary import to_characters
from choral.storage import storage_errors

_BINARY_VERSION, _REVISION = 6, 3
_GELU = 3
_TYPE_IDS = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}
_ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}  # one matrix for input and output


def convert(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the three files into an existing folder; a full disk is a `StorageError`."""
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    with storage_errors(folder):
        with (folder / "model.bin").open("wb") as file:
            _write_model(file, checkpoint)
        (folder / "config.json").write_text(json.dumps(_config(checkpoint, tokenizer), indent=2) + "\n")
        (folder / "vocabulary.json").write_text(json.dumps(_vocabulary(tokenizer)))


def _config(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "alignment_heads": checkpoint.alignment_heads,
        "lang_ids": tokenizer.language_tokens,
        "suppress_ids": tokenizer.suppressed((-1,)),
        "suppress_ids_begin": (*tokenizer.encode(" "), tokenizer.eot),
    }


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    """All tokens by id; CTranslate2 finds special tokens by their names."""
    text = (to_characters(tokenizer.token_bytes(token)) for token in range(tokenizer.n_text))
    special = (tokenizer.decode_with_timestamps([token]) for token in range(tokenizer.n_text, tokenizer.n_vocab))
    return [*text, *special]


def _write_model(file: BinaryIO, checkpoint: Checkpoint) -> None:
    scalars = _scalars(checkpoint.dims)
    variables = layout(checkpoint.dims.n_audio_layer, checkpoint.dims.n_text_layer)
    file.write(struct.pack("<I", _BINARY_VERSION))
    _write_name(file, SPECIFICATION.decode())
    file.write(struct.pack("<II", _REVISION, len(scalars) + len(variables)))
    for name in sorted((*scalars, *variables)):
        if name in scalars:
            value = np.array(scalars[name])
            _write_head(file, name, value.dtype, value.shape)
            file.write(value.tobytes())
        else:
            _write_variable(file, name, [_part(checkpoint, part) for part in variables[name]])
    file.write(struct.pack("<I", len(_ALIASES)))
    for alias, name in _ALIASES.items():
        _write_name(file, alias)
        _write_name(file, name)


def _part(checkpoint: Checkpoint, name: str) -> Array:
    if name.endswith(KEY_BIAS):
        return np.zeros_like(checkpoint.tensors[name.replace(".key.", ".value.")])
    return checkpoint.tensors[name]


def _write_variable(file: BinaryIO, name: str, parts: list[Array]) -> None:
    """Tensors of equal width, concatenated along their rows."""
    dtype = np.result_type(*parts).newbyteorder("<")
    _write_head(file, name, dtype, (sum(len(part) for part in parts), *parts[0].shape[1:]))
    for part in parts:
        file.write(np.ascontiguousarray(part, dtype=dtype).data)


def _write_head(file: BinaryIO, name: str, dtype: np.dtype[np.generic], shape: Shape) -> None:
    _write_name(file, name)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    file.write(struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, _TYPE_IDS[dtype.name], n_bytes))


def _write_name(file: BinaryIO, name: str) -> None:
    data = name.encode() + b"\0"
    file.write(struct.pack("<H", len(data)) + data)


def _scalars(dims: ModelDims) -> dict[str, np.int8 | np.int16]:
    return {
        "encoder/num_heads": np.int16(dims.n_audio_head),
        "decoder/num_heads": np.int16(dims.n_text_head),
        "decoder/activation": np.int8(_GELU),
        "decoder/pre_norm": np.int8(True),
        "decoder/alibi": np.int8(False),
        "decoder/scale_embeddings": np.int8(False),
        "decoder/start_from_zero_embedding": np.int8(False),
        # The default alignment heads, where a caller gives none: one head of the last layer.
        "decoder/alignment_layer": np.int16(-1),
        "decoder/alignment_heads": np.int16(1),
    }
