"""Writes Whisper models as ONNX folders, as optimum and transformers.js do: what concerns the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from choral.model.dims import ModelDims
from small_models import SMALL, Tensors, hugging_face_name, write_config

NUMBERS = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7, "float16": 10}  # of ONNX's types
Array = np.ndarray[Any, Any]


def write_onnx(folder: Path, tensors: Tensors, dims: ModelDims = SMALL, quantized: str | None = None) -> Tensors:
    """Returns what a reader should find: `quantized`, to uint8 or int8, the matrices are not quite those given."""
    (folder / "onnx").mkdir(parents=True)
    write_config(folder, dims)
    expected: Tensors = {}
    for part, file in (("encoder", "encoder_model"), ("decoder", "decoder_model_merged")):
        own = {name: array for name, array in tensors.items() if name.startswith(part)}
        graph = OnnxGraph(quantized)
        expected |= {name: graph.add(name, array) for name, array in own.items()}
        path = folder / "onnx" / f"{file}{'_quantized' if quantized else ''}.onnx"
        path.write_bytes(graph.encode(is_branched=part == "decoder"))
    return expected


class OnnxGraph:
    def __init__(self, quantized: str | None) -> None:
        self._quantized = quantized
        self._constants = [constant("/Constant_shape", np.array([1, 2], np.int64))]
        self._nodes: list[bytes] = []

    def add(self, name: str, array: Array) -> Array:
        name_in_graph = hugging_face_name(name).removeprefix("model.encoder.")
        branch = "_merged_1" if len(self._nodes) % 2 else "_merged_0"  # two matrices may have the same number
        suffix = branch if name.startswith("decoder") else ""
        is_matrix = array.ndim == 2 and name.endswith(".weight") and "token" not in name
        stored = array.T if is_matrix else array
        if is_matrix:
            layer = name_in_graph.removesuffix(".weight").replace(".", "/").replace("layers/", "layers.")
            name_in_graph = f"onnx::MatMul_{len(self._nodes) // 2 if suffix else len(self._nodes)}"
            self._add_product(layer, name_in_graph + suffix)
        if self._quantized is None or array.ndim == 1 or "positional" in name:
            self._constants.append(constant(name_in_graph + suffix, stored))
            return array
        values, scale, zero_point = quantize(stored, self._quantized)
        self._constants += [
            constant(f"{name_in_graph}{suffix}_quantized", values),
            constant(f"{name_in_graph}{suffix}_scale", scale, is_in_list=True),
            constant(f"{name_in_graph}{suffix}_zero_point", zero_point, is_in_list=True),
        ]
        read: Array = (values.astype(np.float32) - np.float32(zero_point)) * scale
        return read.T if is_matrix else read

    def _add_product(self, layer: str, matrix: str) -> None:
        operation, suffix = ("MatMulInteger", "_quantized") if self._quantized else ("MatMul", "")
        fields = [(1, b"x"), (1, f"{matrix}{suffix}".encode()), (3, f"/{layer}/MatMul{suffix}".encode())]
        self._nodes.append(message(*fields, (4, operation.encode())))

    def encode(self, *, is_branched: bool) -> bytes:
        constants, nodes = [(5, each) for each in self._constants], [(1, each) for each in self._nodes]
        if is_branched:  # every other node is in one of the branches of an `if`, and the rest in the other
            attributes = [(5, message((1, b"branch"), (6, message(*nodes[start::2])))) for start in (0, 1)]
            nodes = [(1, message((4, b"If"), *attributes))]
        return message((2, b"test"), (7, message(*nodes, *constants)), (1, 8))


def quantize(array: Array, dtype: str) -> tuple[Array, Array, Array]:
    limits = np.iinfo(dtype)
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    scale = np.float32((high - low) / (limits.max - limits.min))
    zero_point = round(limits.min - low / float(scale))
    values = np.clip(np.rint(array / scale) + zero_point, limits.min, limits.max).astype(dtype)
    return values, np.array(scale), np.array(zero_point, dtype)


def constant(name: str, array: Array, *, is_in_list: bool = False) -> bytes:
    """Single numbers are not stored as bytes but in a list of numbers of their kind."""
    sizes = [(1, size) for size in array.shape]
    kind = (2, NUMBERS[array.dtype.name])
    if not is_in_list:
        data = (9, np.ascontiguousarray(array).tobytes())
    elif array.dtype == np.float32:
        data = (4, array.tobytes())
    else:
        data = (5, varint(int(array) & (2**64 - 1)))  # negative numbers have 64 bits
    return message(*sizes, kind, (8, name.encode()), data)


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message of numbers and bytes."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            encoded += varint(number << 3 | 2) + varint(len(value)) + value
    return encoded


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
