"""CTranslate2's folders: model.bin, with config.json and a vocabulary beside it.

model.bin is a list of named variables and a list of aliases for variables that are equal. Projections that share
their input are stored as one (query, key and value), int8 and int16 weights with a scale for each row or for all.
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
from choral.model.checkpoint import Array, Checkpoint, LazyTensor, Shape, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights import vocabulary
from choral.model.weights.mapped_file import MappedFile, Reader, corrupt, read_json_object
from choral.model.weights.state_dict import dims_from_shapes

SPECIFICATION = b"WhisperSpec"
_OLDEST_VERSION = 6
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
    heads = _heads(folder, dims) or alignment_heads.for_model(dims, folder.name)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, vocabulary.of_ctranslate2(folder), folder)


def _heads(folder: Path, dims: ModelDims) -> alignment_heads.Heads | None:
    path = folder / "config.json"
    return alignment_heads.checked(read_json_object(path).get("alignment_heads"), dims) if path.is_file() else None


class _Model:
    """The variables in model.bin, under CTranslate2's names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        reader = Reader(self._file)
        version = reader.number("I", "its version")
        if version < _OLDEST_VERSION:
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

    def _name(self, reader: Reader) -> str:
        return reader.take(reader.number("H", "a name"), "a name").rstrip(b"\0").decode("utf-8", "replace")

    def _variable(self, reader: Reader) -> tuple[str, _Variable]:
        name = self._name(reader)
        what = f"the variable {printable(name)}"
        shape = reader.numbers(f"{reader.number('B', what)}I", what)
        type_id, n_bytes = reader.numbers("BI", what)
        if type_id >= len(_DTYPES) or math.prod(shape) * _DTYPES[type_id][1] != n_bytes:
            raise corrupt(self.path, f"the size of {what} is not that of its shape")
        return name, _Variable(reader.skip(n_bytes, what), n_bytes, _DTYPES[type_id][0], shape)

    def count(self, name: str) -> int | None:
        """A whole number that stands alone in the file, or None where there is no such number."""
        variable = self._variables.get(name)
        if variable is None or variable.shape or not variable.dtype.startswith("int"):
            return None
        return int.from_bytes(self._file.read(variable.start, variable.n_bytes, name), "little", signed=True)

    def tensors(self) -> Iterator[tuple[str, LazyTensor]]:
        """All tensors under OpenAI's names."""
        yield from self._one("encoder.positional_embedding", "encoder/position_encodings/encodings", is_needed=False)
        yield from self._one("decoder.positional_embedding", "decoder/position_encodings/encodings")
        yield from self._one("decoder.token_embedding.weight", "decoder/embeddings/weight")
        for conv in ("conv1", "conv2"):
            yield from self._linear(f"encoder/{conv}", f"encoder.{conv}")
        yield from self._norm("encoder/layer_norm", "encoder.ln_post")
        yield from self._norm("decoder/layer_norm", "decoder.ln")
        for part in ("encoder", "decoder"):
            layer = 0
            while f"{part}/layer_{layer}/self_attention/layer_norm/gamma" in self._variables:
                yield from self._block(f"{part}/layer_{layer}", f"{part}.blocks.{layer}", part == "decoder")
                layer += 1

    def _block(self, source: str, target: str, is_decoder: bool) -> Iterator[tuple[str, LazyTensor]]:
        yield from self._norm(f"{source}/self_attention/layer_norm", f"{target}.attn_ln")
        yield from self._linear(f"{source}/self_attention/linear_0", *_parts(target, "attn", "query", "key", "value"))
        yield from self._linear(f"{source}/self_attention/linear_1", f"{target}.attn.out")
        if is_decoder:
            yield from self._norm(f"{source}/attention/layer_norm", f"{target}.cross_attn_ln")
            yield from self._linear(f"{source}/attention/linear_0", f"{target}.cross_attn.query")
            yield from self._linear(f"{source}/attention/linear_1", *_parts(target, "cross_attn", "key", "value"))
            yield from self._linear(f"{source}/attention/linear_2", f"{target}.cross_attn.out")
        yield from self._norm(f"{source}/ffn/layer_norm", f"{target}.mlp_ln")
        yield from self._linear(f"{source}/ffn/linear_0", f"{target}.mlp.0")
        yield from self._linear(f"{source}/ffn/linear_1", f"{target}.mlp.2")

    def _norm(self, source: str, target: str) -> Iterator[tuple[str, LazyTensor]]:
        yield from self._one(f"{target}.weight", f"{source}/gamma")
        yield from self._one(f"{target}.bias", f"{source}/beta")

    def _linear(self, source: str, *targets: str) -> Iterator[tuple[str, LazyTensor]]:
        """Weight and bias of a projection, cut into as many equal parts as there are targets."""
        for kind in ("weight", "bias"):
            whole = self._tensor(f"{source}/{kind}")
            n_rows, is_uneven = divmod(whole.shape[0] if whole.shape else 0, len(targets))
            if is_uneven or not n_rows:
                raise corrupt(self.path, f"the variable {source}/{kind} cannot be cut into {len(targets)} parts")
            for index, target in enumerate(targets):
                if kind == "weight" or not target.endswith(".key"):  # the keys' bias is zeros, put in for the format
                    rows = slice(index * n_rows, (index + 1) * n_rows)
                    yield f"{target}.{kind}", self._tensor(f"{source}/{kind}", rows)

    def _one(self, target: str, source: str, is_needed: bool = True) -> Iterator[tuple[str, LazyTensor]]:
        if is_needed or source in self._variables:
            yield target, self._tensor(source)

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
            return LazyTensor(shape, partial(_dequantized, data.view(f"<i{item_bytes}"), shape, scale))
        if variable.dtype == "int32":
            raise corrupt(self.path, f"the variable {name} holds whole numbers")
        return self._file.tensor(name, start, variable.dtype, shape)

    def _scale(self, name: str, shape: Shape, rows: slice | None) -> LazyTensor:
        variable = self._variables.get(f"{name}_scale")
        if variable is None or variable.shape not in ((), shape[:1]) or variable.dtype.startswith("int"):
            raise corrupt(self.path, f"the scale of the variable {name} is missing")
        return self._tensor(f"{name}_scale", rows if variable.shape else None)


def _parts(block: str, attention: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{block}.{attention}.{part}" for part in parts)


def _dequantized(whole_numbers: Array, shape: Shape, scale: LazyTensor) -> Array:
    per_row = scale.load().astype(np.float32).reshape(-1, *(1,) * (len(shape) - 1))
    with np.errstate(all="ignore"):  # damaged numbers are no worse here than in plain floats
        return whole_numbers.reshape(shape).astype(np.float32) / per_row
