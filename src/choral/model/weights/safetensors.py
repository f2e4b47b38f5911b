"""Reader of safetensors files: the header's length in eight bytes, a JSON header, then the tensors' data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from choral.errors import ModelCorrupt
from choral.model.checkpoint import LazyTensor, printable
from choral.model.weights.mapped_file import BinaryReader, MappedFile, corrupt, is_shape

_MAX_HEADER_BYTES = 100_000_000  # the limit of the format itself
_DTYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    reader = BinaryReader(MappedFile(path))
    header_bytes = reader.number("Q", "its header")
    if header_bytes > _MAX_HEADER_BYTES:
        raise corrupt(path, "its header is larger than the format allows")
    text = reader.take(header_bytes, "its header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise corrupt(path, "its header is not valid JSON") from error
    if not isinstance(header, dict):
        raise corrupt(path, "its header lists no tensors")
    return {name: _tensor(reader, name, entry) for name, entry in header.items() if name != "__metadata__"}


def _tensor(reader: BinaryReader, name: str, entry: Any) -> LazyTensor:
    path, short_name = reader.file.path, printable(name)
    if not isinstance(entry, dict) or not is_shape(entry.get("shape")) or not is_shape(entry.get("data_offsets")):
        raise corrupt(path, f"its header does not say where the tensor {short_name} is")
    if entry.get("dtype") not in _DTYPES:
        raise ModelCorrupt(
            f"{path}: the tensor {short_name} has the type {printable(str(entry.get('dtype')))}; "
            "Choral reads F32, F16 and BF16. Fetch or save the model in one of these."
        )
    dtype, item_bytes = _DTYPES[entry["dtype"]]
    offsets: list[int] = entry["data_offsets"]
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(entry["shape"]) * item_bytes:
        raise corrupt(path, f"the size of the tensor {short_name} is not that of its shape")
    return reader.file.tensor(short_name, reader.position + offsets[0], dtype, tuple(entry["shape"]))
