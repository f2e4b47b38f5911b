"""Reader of CTranslate2 folders: model.bin, with config.json and a vocabulary beside it.

model.bin is a list of named variables and a list of aliases. Projections that share their input (query, key, value)
are fused into one variable; int8 and int16 weights have a scale for each row or for the whole variable. `layout` maps
variables to OpenAI's tensor names, for this reader and for the writer in `to_ctranslate2`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import (
    AUDIO_POSITIONS,
    Array,
    Checkpoint,
    LazyTensor,
    Shape,
    printable,
    with_audio_positions,
)
from choral.model.weights import vocabulary
from choral.model.weights.mapped_file import BinaryReader, MappedFile, corrupt
from choral.model.weights.state_dict import configured_heads, dims_from_shapes

SPECIFICATION = b"WhisperSpec"
KEY_BIAS = ".key.bias"  # Whisper's keys have none; CTranslate2 stores zeros in the fused projections
_MIN_VERSION = 6
_AUDIO_POSITIONS_VARIABLE = "encoder/position_encodings/encodings"
_DTYPES = (("float32", 4), ("int8", 1), ("int16", 2), ("int32", 4), ("float16", 2), ("bfloat16", 2))


@dataclass(frozen=True)
class _Variable:
    start: int
    n_bytes: int
    dtype: str
    shape: Shape


def open_ctranslate2(folder: Path) -> Checkpoint:
    path = folder / "model.bin"
    model = _Model(path)
    entries = dict(model.tensors())
    try:
        dims = dims_from_shapes(entries, model.count("encoder/num_heads"), model.count("decoder/num_heads"))
    except ModelCorrupt as error:
        raise corrupt(path, str(error)) from error
    heads = configured_heads(folder / "config.json", dims) or alignment_heads.for_model(dims, folder.name)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, vocabulary.of_ctranslate2(folder), folder)


class _Model:
    """The variables of model.bin, under CTranslate2's names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        reader = BinaryReader(self._file)
        version = reader.number("I", "its version")
        if version < _MIN_VERSION:
            raise ModelCorrupt(f"{path}: its format is version {version}, too old to read: convert the model again.")
        if self._name(reader) != SPECIFICATION.decode():
            raise corrupt(path, "it is a CTranslate2 model of another kind than Whisper")
        reader.number("I", "its revision")
        self._variables = dict(self._variable(reader) for _ in range(reader.number("I", "the count of variables")))
        for _ in range(reader.number("I", "the count of aliases")):
            alias, target = self._name(reader), self._name(reader)
            if target not in self._variables:
                raise corrupt(path, f"the variable {printable(target)} is missing")
            self._variables[alias] = self._variables[target]

    def _name(self, reader: BinaryReader) -> str:
        return reader.take(reader.number("H", "a name"), "a name").rstrip(b"\0").decode("utf-8", "replace")

    def _variable(self, reader: BinaryReader) -> tuple[str, _Variable]:
        name = self._name(reader)
        what = f"the variable {printable(name)}"
        shape = reader.numbers(f"{reader.number('B', what)}I", what)
        type_id, n_bytes = reader.numbers("BI", what)
        if type_id >= len(_DTYPES) or math.prod(shape) * _DTYPES[type_id][1] != n_bytes:
            raise corrupt(self.path, f"the size of {what} is not that of its shape")
        return name, _Variable(reader.skip(n_bytes, what), n_bytes, _DTYPES[type_id][0], shape)

    def count(self, name: str) -> int | None:
        """The value of an integer scalar, or None where there is none of this name."""
        variable = self._variables.get(name)
        if variable is None or variable.shape or not variable.dtype.startswith("int"):
            return None
        return int.from_bytes(self._file.read(variable.start, variable.n_bytes, name), "little", signed=True)

    def tensors(self) -> Iterator[tuple[str, LazyTensor]]:
        """All tensors under OpenAI's names."""
        for variable, targets in layout(self._n_layers("encoder"), self._n_layers("decoder")).items():
            if len(targets) > 1:
                yield from self._split(variable, targets)
            elif variable != _AUDIO_POSITIONS_VARIABLE or variable in self._variables:  # older files lack them
                yield targets[0], self._tensor(variable)

    def _n_layers(self, part: str) -> int:
        n_layers = 0
        while f"{part}/layer_{n_layers}/self_attention/layer_norm/gamma" in self._variables:
            n_layers += 1
        return n_layers

    def _split(self, variable: str, targets: tuple[str, ...]) -> Iterator[tuple[str, LazyTensor]]:
        """A fused projection, cut into equal parts."""
        whole = self._tensor(variable)
        n_rows, is_uneven = divmod(whole.shape[0] if whole.shape else 0, len(targets))
        if is_uneven or not n_rows:
            raise corrupt(self.path, f"the variable {variable} cannot be cut into {len(targets)} parts")
        for index, target in enumerate(targets):
            if not target.endswith(KEY_BIAS):
                yield target, self._tensor(variable, slice(index * n_rows, (index + 1) * n_rows))

    def _tensor(self, name: str, rows: slice | None = None) -> LazyTensor:
        """A variable, or some of its rows."""
        variable = self._variables.get(name)
        if variable is None:
            raise corrupt(self.path, f"the variable {name} is missing")
        start, shape = variable.start, variable.shape
        item_bytes = variable.n_bytes // max(math.prod(shape), 1)
        if rows is not None:
            start += rows.start * math.prod(shape[1:]) * item_bytes
            shape = (rows.stop - rows.start, *shape[1:])
        if variable.dtype in ("int8", "int16"):
            data = self._file.view(start, math.prod(shape) * item_bytes, name)
            scale = self._scale(name, variable.shape, rows)
            return LazyTensor(shape, partial(_dequantize, data.view(f"<i{item_bytes}"), shape, scale))
        if variable.dtype == "int32":
            raise corrupt(self.path, f"the variable {name} holds integers")
        return self._file.tensor(name, start, variable.dtype, shape)

    def _scale(self, name: str, shape: Shape, rows: slice | None) -> LazyTensor:
        variable = self._variables.get(f"{name}_scale")
        if variable is None or variable.shape not in ((), shape[:1]) or variable.dtype.startswith("int"):
            raise corrupt(self.path, f"the scale of the variable {name} is missing")
        return self._tensor(f"{name}_scale", rows if variable.shape else None)


def _dequantize(integers: Array, shape: Shape, scale: LazyTensor) -> Array:
    per_row = scale.load().astype(np.float32).reshape(-1, *(1,) * (len(shape) - 1))
    with np.errstate(all="ignore"):  # damaged scales give wrong numbers, as damaged floats do
        return integers.reshape(shape).astype(np.float32) / per_row


def layout(n_audio_layer: int, n_text_layer: int) -> dict[str, tuple[str, ...]]:
    """The variables of model.bin, and the tensors (under OpenAI's names) that each consists of."""
    variables: dict[str, tuple[str, ...]] = {
        _AUDIO_POSITIONS_VARIABLE: (AUDIO_POSITIONS,),
        "decoder/position_encodings/encodings": ("decoder.positional_embedding",),
        "decoder/embeddings/weight": ("decoder.token_embedding.weight",),
        **_linear_variables("encoder/conv1", "encoder.conv1"),
        **_linear_variables("encoder/conv2", "encoder.conv2"),
        **_norm_variables("encoder/layer_norm", "encoder.ln_post"),
        **_norm_variables("decoder/layer_norm", "decoder.ln"),
    }
    for layer in range(n_audio_layer):
        variables |= _block_variables(f"encoder/layer_{layer}", f"encoder.blocks.{layer}")
    for layer in range(n_text_layer):
        variables |= _block_variables(f"decoder/layer_{layer}", f"decoder.blocks.{layer}")
        variables |= _cross_attention_variables(
            f"decoder/layer_{layer}/attention", f"decoder.blocks.{layer}.cross_attn"
        )
    return variables


def _block_variables(name: str, block: str) -> dict[str, tuple[str, ...]]:
    attention = f"{block}.attn"
    return {
        **_norm_variables(f"{name}/self_attention/layer_norm", f"{block}.attn_ln"),
        **_linear_variables(
            f"{name}/self_attention/linear_0", f"{attention}.query", f"{attention}.key", f"{attention}.value"
        ),
        **_linear_variables(f"{name}/self_attention/linear_1", f"{attention}.out"),
        **_norm_variables(f"{name}/ffn/layer_norm", f"{block}.mlp_ln"),
        **_linear_variables(f"{name}/ffn/linear_0", f"{block}.mlp.0"),
        **_linear_variables(f"{name}/ffn/linear_1", f"{block}.mlp.2"),
    }


def _cross_attention_variables(name: str, attention: str) -> dict[str, tuple[str, ...]]:
    return {
        **_norm_variables(f"{name}/layer_norm", f"{attention}_ln"),
        **_linear_variables(f"{name}/linear_0", f"{attention}.query"),
        **_linear_variables(f"{name}/linear_1", f"{attention}.key", f"{attention}.value"),
        **_linear_variables(f"{name}/linear_2", f"{attention}.out"),
    }


def _norm_variables(name: str, norm: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}/gamma": (f"{norm}.weight",), f"{name}/beta": (f"{norm}.bias",)}


def _linear_variables(name: str, *projections: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}/{kind}": tuple(f"{part}.{kind}" for part in projections) for kind in ("weight", "bias")}
