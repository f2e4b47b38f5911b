"""Any checkpoint as a folder that CTranslate2 loads: model.bin, config.json and vocabulary.json.

The mirror of the reader in `ctranslate2_folder`. Numbers are written as the checkpoint has them, float16 or float32,
one tensor at a time: nothing but a tensor is in memory, and CTranslate2 quantises while it loads. The same checkpoint
gives the same bytes, those of CTranslate2's own converter. Neither torch nor ctranslate2 is needed.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from choral.model.checkpoint import AUDIO_POSITIONS, Array, Checkpoint, Shape
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights.ctranslate2_folder import SPECIFICATION
from choral.model.weights.vocabulary import to_characters
from choral.storage import storage_errors

_BINARY_VERSION, _REVISION = 6, 3
_GELU = 3
_TYPE_IDS = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}
_ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}  # tokens are read and written by one matrix


def convert(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the three files into a folder that exists; a disk that is full is a `StorageError`."""
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
    """All tokens by id. CTranslate2 finds the special ones by their names."""
    text = (to_characters(tokenizer.token_bytes(token)) for token in range(tokenizer.n_text))
    special = (tokenizer.decode_with_timestamps([token]) for token in range(tokenizer.n_text, tokenizer.n_vocab))
    return [*text, *special]


def _write_model(file: BinaryIO, checkpoint: Checkpoint) -> None:
    scalars, layout = _scalars(checkpoint.dims), _layout(checkpoint.dims)
    file.write(struct.pack("<I", _BINARY_VERSION))
    _write_name(file, SPECIFICATION.decode())
    file.write(struct.pack("<II", _REVISION, len(scalars) + len(layout)))
    for name in sorted((*scalars, *layout)):
        if name in scalars:
            value = np.array(scalars[name])
            _write_head(file, name, value.dtype, value.shape)
            file.write(value.tobytes())
        else:
            _write_variable(file, name, [_part(checkpoint, part) for part in layout[name]])
    file.write(struct.pack("<I", len(_ALIASES)))
    for alias, name in _ALIASES.items():
        _write_name(file, alias)
        _write_name(file, name)


def _part(checkpoint: Checkpoint, name: str) -> Array:
    if name.endswith(".key.bias"):  # keys have none, and CTranslate2 wants one for the three projections together
        return np.zeros_like(checkpoint.tensors[name.replace(".key.", ".value.")])
    return checkpoint.tensors[name]


def _write_variable(file: BinaryIO, name: str, parts: list[Array]) -> None:
    """Tensors of equal width, one below the other."""
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
        # What a caller asks attention of, where it gives none itself: one head of the last layer.
        "decoder/alignment_layer": np.int16(-1),
        "decoder/alignment_heads": np.int16(1),
    }


def _layout(dims: ModelDims) -> dict[str, tuple[str, ...]]:
    """CTranslate2's variables, and the tensors under OpenAI's names that each consists of."""
    layout: dict[str, tuple[str, ...]] = {
        "encoder/position_encodings/encodings": (AUDIO_POSITIONS,),
        "decoder/position_encodings/encodings": ("decoder.positional_embedding",),
        "decoder/embeddings/weight": ("decoder.token_embedding.weight",),
        **_linear("encoder/conv1", "encoder.conv1"),
        **_linear("encoder/conv2", "encoder.conv2"),
        **_norm("encoder/layer_norm", "encoder.ln_post"),
        **_norm("decoder/layer_norm", "decoder.ln"),
    }
    for layer in range(dims.n_audio_layer):
        layout |= _block(f"encoder/layer_{layer}", f"encoder.blocks.{layer}")
    for layer in range(dims.n_text_layer):
        layout |= _block(f"decoder/layer_{layer}", f"decoder.blocks.{layer}")
        layout |= _cross_attention(f"decoder/layer_{layer}/attention", f"decoder.blocks.{layer}.cross_attn")
    return layout


def _block(name: str, block: str) -> dict[str, tuple[str, ...]]:
    attention = f"{block}.attn"
    return {
        **_norm(f"{name}/self_attention/layer_norm", f"{block}.attn_ln"),
        **_linear(f"{name}/self_attention/linear_0", f"{attention}.query", f"{attention}.key", f"{attention}.value"),
        **_linear(f"{name}/self_attention/linear_1", f"{attention}.out"),
        **_norm(f"{name}/ffn/layer_norm", f"{block}.mlp_ln"),
        **_linear(f"{name}/ffn/linear_0", f"{block}.mlp.0"),
        **_linear(f"{name}/ffn/linear_1", f"{block}.mlp.2"),
    }


def _cross_attention(name: str, attention: str) -> dict[str, tuple[str, ...]]:
    return {
        **_norm(f"{name}/layer_norm", f"{attention}_ln"),
        **_linear(f"{name}/linear_0", f"{attention}.query"),
        **_linear(f"{name}/linear_1", f"{attention}.key", f"{attention}.value"),
        **_linear(f"{name}/linear_2", f"{attention}.out"),
    }


def _norm(name: str, norm: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}/gamma": (f"{norm}.weight",), f"{name}/beta": (f"{norm}.bias",)}


def _linear(name: str, *projections: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}/{kind}": tuple(f"{part}.{kind}" for part in projections) for kind in ("weight", "bias")}
