"""Reads files that may be damaged or hostile: every offset and length is checked against the size of the file.

Files are memory-mapped, never read whole; damage becomes a `ModelCorrupt` that names the file.
"""

from __future__ import annotations

import json
import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from choral.errors import ModelCorrupt, ModelError
from choral.model.checkpoint import Array, LazyTensor, Shape, printable

_MAX_JSON_BYTES = 64 * 2**20  # the tokenizer.json of a Whisper model has 2 to 4 MB
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def corrupt(path: Path, what: str) -> ModelCorrupt:
    return ModelCorrupt(f"{path}: {what}. The file is cut short, damaged or not a Whisper model: fetch it again.")


class MappedFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.n_bytes = path.stat().st_size
            if self.n_bytes == 0:
                raise corrupt(path, "it is empty")
            self._bytes: Array = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
        self._memory = self._bytes.data  # slicing it is faster than slicing the array

    def read(self, start: int, n_bytes: int, what: str) -> bytes:
        self._check(start, n_bytes, what)
        return bytes(self._memory[start : start + n_bytes])

    def byte(self, position: int) -> int:
        return self._memory[position]

    def view(self, start: int, n_bytes: int, what: str) -> Array:
        """These bytes as an array of uint8, without reading them from disk."""
        self._check(start, n_bytes, what)
        return self._bytes[start : start + n_bytes]

    def tensor(self, name: str, start: int, dtype: str, shape: Shape) -> LazyTensor:
        """A tensor of float32, float16 or bfloat16 that starts at this byte."""
        data = self.view(start, math.prod(shape) * _ITEM_BYTES[dtype], f"the tensor {printable(name)}")
        return LazyTensor(shape, partial(_as_floats, data, dtype, shape))

    def _check(self, start: int, n_bytes: int, what: str) -> None:
        if start < 0 or n_bytes < 0 or start + n_bytes > self.n_bytes:
            raise corrupt(self.path, f"{what} ends beyond the end of the file")


class BinaryReader:
    """Reads a mapped file sequentially, in little-endian numbers."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    @property
    def at_end(self) -> bool:
        return self.position == self.file.n_bytes

    def take(self, n_bytes: int, what: str) -> bytes:
        data = self.file.read(self.position, n_bytes, what)
        self.position += n_bytes
        return data

    def numbers(self, layout: str, what: str) -> tuple[int, ...]:
        layout = f"<{layout}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def number(self, layout: str, what: str) -> int:
        return self.numbers(layout, what)[0]

    def skip(self, n_bytes: int, what: str) -> int:
        """Skip these bytes and return the position where they start."""
        self.file.view(self.position, n_bytes, what)
        self.position += n_bytes
        return self.position - n_bytes


def _as_floats(data: Array, dtype: str, shape: Shape) -> Array:
    if dtype == "bfloat16":
        widened = data.view("<u2").astype(np.uint32)
        widened <<= 16
        return widened.view(np.float32).reshape(shape)
    return data.view("<f4" if dtype == "float32" else "<f2").reshape(shape)


def read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise corrupt(path, "it is far larger than such a file can be")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise corrupt(path, "it is not valid JSON") from error


def read_json_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise corrupt(path, "it holds no JSON object")
    return value


def is_shape(value: object) -> bool:
    """Whether this is a list of non-negative integers of a plausible size."""
    return isinstance(value, list | tuple) and all(type(size) is int and 0 <= size < 2**48 for size in value)
