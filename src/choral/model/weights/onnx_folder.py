"""Reader of folders that optimum and transformers.js write: config.json beside an encoder and a decoder in ONNX.

A file is a protobuf message, of which the constants are read, and the nodes that say what they are: a matrix has lost
its name ("onnx::MatMul_1723") and its orientation, but the node that multiplies by it is named after its layer.
Quantised constants have a scale and a zero point beside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Array, Checkpoint, LazyTensor, LazyTensors, Shape, expected_shapes, printable
from choral.model.weights import vocabulary
from choral.model.weights.hugging_face import read_dims
from choral.model.weights.mapped_file import MappedFile, corrupt, is_shape
from choral.model.weights.protobuf import ProtobufMessage
from choral.model.weights.state_dict import configured_heads, openai_name

_SUFFIXES = ("", "_fp16", "_quantized", "_int8", "_uint8")  # of file names; the most precise first
_ENCODERS = tuple(f"encoder_model{suffix}.onnx" for suffix in _SUFFIXES)
_DECODERS = tuple(f"{name}{suffix}.onnx" for suffix in _SUFFIXES for name in ("decoder_model_merged", "decoder_model"))
_SUBFOLDERS = ("onnx", ".")
_DTYPES = {1: "<f4", 2: "u1", 3: "i1", 10: "<f2"}  # by ONNX's numbers; constants of other types are not weights
_SCALE, _ZERO_POINT, _QUANTIZED = "_scale", "_zero_point", "_quantized"  # after a constant's name
_MERGED = re.compile(r"_merged_\d+$")  # after the name of a constant from one or the other of a decoder's branches

# The fields of ONNX's messages that are read.
_GRAPH = 7  # of a model
_NODES, _CONSTANTS = 1, 5  # of a graph
_INPUTS, _NODE_NAME, _OPERATION, _ATTRIBUTES = 1, 3, 4, 5  # of a node
_SUBGRAPH = 6  # of an attribute
_SIZES, _TYPE, _FLOATS, _INTEGERS, _TENSOR_NAME, _RAW, _EXTERNAL = 1, 2, 4, 5, 8, 9, 13  # of a constant


@dataclass(frozen=True)
class OnnxConstant:
    shape: Shape
    values: Array  # of the type in which they are stored

    @property
    def number(self) -> float:
        return float(self.values.reshape(-1)[0])


@dataclass
class OnnxWeights:
    constants: dict[str, OnnxConstant] = field(default_factory=dict)
    parameter_of_matrix: dict[str, str] = field(default_factory=dict)  # in Hugging Face's words


def find_onnx(folder: Path) -> tuple[Path, Path] | None:
    """The encoder and the decoder in a folder that has both."""
    found = [_first(folder, names) for names in (_ENCODERS, _DECODERS)]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    paths = (folder / subfolder / name for name in names for subfolder in _SUBFOLDERS)
    return next((path for path in paths if path.is_file()), None)


def open_onnx(folder: Path, encoder: Path, decoder: Path) -> Checkpoint:
    dims = read_dims(folder / "config.json")
    known = expected_shapes(dims)
    named = ((openai_name(name), tensor) for path in (encoder, decoder) for name, tensor in _tensors(path))
    heads = configured_heads(folder / "generation_config.json", dims) or alignment_heads.for_model(dims, folder.name)
    # Further constants belong to the way in which the graph is written.
    tensors = LazyTensors({name: tensor for name, tensor in named if name in known})
    return Checkpoint(dims, tensors, heads, vocabulary.of_hugging_face(folder), folder)


def _tensors(path: Path) -> Iterator[tuple[str, LazyTensor]]:
    """The parameters in a file, under Hugging Face's names."""
    weights = _read_weights(path)
    prefix = "encoder." if path.name in _ENCODERS else ""
    for name, constant in weights.constants.items():
        if name.endswith((_SCALE, _ZERO_POINT)):
            continue
        original = name.removesuffix(_QUANTIZED)
        parameter = weights.parameter_of_matrix.get(name)
        load = partial(_dequantized, weights, original, constant) if name != original else partial(_floats, constant)
        if parameter is None:
            yield prefix + _MERGED.sub("", original), LazyTensor(constant.shape, load)
        elif len(constant.shape) == 2:
            yield prefix + parameter, LazyTensor(constant.shape[::-1], partial(_transposed, load))


def _floats(constant: OnnxConstant) -> Array:
    return constant.values.reshape(constant.shape)


def _transposed(load: partial[Array]) -> Array:
    return np.ascontiguousarray(load().T)


def _dequantized(weights: OnnxWeights, name: str, constant: OnnxConstant) -> Array:
    """One scale and zero point for the whole tensor."""
    scale, zero_point = weights.constants[name + _SCALE], weights.constants[name + _ZERO_POINT]
    values = constant.values.reshape(constant.shape).astype(np.float32)
    values -= np.float32(zero_point.number)
    values *= np.float32(scale.number)
    return values


def _read_weights(path: Path) -> OnnxWeights:
    weights = OnnxWeights()
    for graph in ProtobufMessage.of_file(MappedFile(path)).messages(_GRAPH):
        _read_graph(graph, weights)
        for node in graph.messages(_NODES):
            for attribute in node.messages(_ATTRIBUTES):
                for branch in attribute.messages(_SUBGRAPH):
                    _read_graph(branch, weights)
    for name in [name for name in weights.constants if name.endswith(_QUANTIZED)]:
        _require_scale(weights, name, path)
    return weights


def _require_scale(weights: OnnxWeights, name: str, path: Path) -> None:
    for suffix in (_SCALE, _ZERO_POINT):
        constant = weights.constants.get(name.removesuffix(_QUANTIZED) + suffix)
        if constant is None or math.prod(constant.shape) != 1:
            raise ModelCorrupt(
                f"{path}: the tensor {printable(name)} is not quantised with one scale for all its values, as Choral "
                "reads them. Export the model with per_channel=False, or in float32."
            )


def _read_graph(graph: ProtobufMessage, weights: OnnxWeights) -> None:
    for message in graph.messages(_CONSTANTS):
        name, constant = _read_constant(message)
        if constant is not None:
            weights.constants[name] = constant
    for node in graph.messages(_NODES):
        texts = {_INPUTS: [""], _NODE_NAME: [""], _OPERATION: [""]}
        for number, value in node.fields():
            if number in texts and isinstance(value, ProtobufMessage):
                texts[number].append(value.text)
        if texts[_OPERATION][-1] in ("MatMul", "MatMulInteger") and len(texts[_INPUTS]) > 2:
            layer = texts[_NODE_NAME][-1].strip("/").rpartition("/")[0]
            weights.parameter_of_matrix[texts[_INPUTS][2]] = layer.replace("/", ".") + ".weight"


def _read_constant(message: ProtobufMessage) -> tuple[str, OnnxConstant | None]:
    """A constant's name, and its values if they are of a type that weights have."""
    path = message.file.path
    name, dtype, sizes = "", None, list[int]()
    values: Array = np.empty(0, np.uint8)
    for number, value in message.fields():
        if number == _SIZES:
            sizes += [value] if isinstance(value, int) else value.varints()
        elif number == _TYPE and isinstance(value, int):
            dtype = _DTYPES.get(value)
        elif isinstance(value, ProtobufMessage):
            if number == _TENSOR_NAME:
                name = value.text
            elif number == _RAW:
                values = value.view
            elif number == _FLOATS:
                values = np.array(value.floats(), "<f4")
            elif number == _INTEGERS:
                values = np.array([each & 0xFF for each in value.varints()], np.uint8)
            elif number == _EXTERNAL:
                raise ModelCorrupt(f"{path}: its weights are in another file, which Choral does not read.")
    if dtype is None:
        return name, None
    if not is_shape(sizes) or values.nbytes != math.prod(sizes) * np.dtype(dtype).itemsize:
        raise corrupt(path, f"the tensor {printable(name)} has not the size that it says")
    return name, OnnxConstant(tuple(sizes), values.view(dtype))
