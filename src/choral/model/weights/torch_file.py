"""Reader of files written by `torch.save`, such as OpenAI's tiny.en.pt, without torch and without running code.

Such a file is a zip archive: `data.pkl` describes the structure, and each storage is an uncompressed member. Pickle is
a stack language whose programs may call any function. This reader implements only the instructions that a dictionary
of tensors needs and refuses all others, so that a hostile file is an error and not a program.
"""

from __future__ import annotations

import math
import pickletools
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Array, Checkpoint, LazyTensor, Shape, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights.mapped_file import MappedFile, corrupt, is_shape
from choral.model.weights.state_dict import dims_from_shapes, named_tensors

_MAX_PICKLE_BYTES = 8 * 2**20  # that of large-v3 has 150 kB
_LOCAL_HEADER_BYTES = 30

_DTYPE_OF_STORAGE = {
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
}
_CALLABLE = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES",
}  # fmt: skip
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def open_openai_pt(path: Path) -> Checkpoint:
    """OpenAI's checkpoints: dims and a state dict. Of a plain state dict, the dims are inferred from the shapes."""
    content = read_torch_file(path)
    if not isinstance(content, dict):
        raise corrupt(path, "it holds no dictionary of tensors")
    state = next((content[key] for key in ("model_state_dict", "state_dict") if key in content), content)
    entries = named_tensors(state, path)
    try:
        dims = _dims(content["dims"]) if "dims" in content else dims_from_shapes(entries)
    except ModelCorrupt as error:
        raise corrupt(path, str(error)) from error
    heads = alignment_heads.for_model(dims, path.stem)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, None, path)


def _dims(stored: object) -> ModelDims:
    fields = ModelDims.__dataclass_fields__
    if not isinstance(stored, dict) or set(stored) != set(fields):
        raise ModelCorrupt(f"its dims are not {', '.join(fields)}")
    return ModelDims(**stored)


def read_torch_file(path: Path) -> object:
    """The object in the file: dictionaries, lists, tuples, numbers and strings, with `LazyTensor` for tensors."""
    archive = _Archive(path)
    program = archive.read("data.pkl")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # by pickletools, about damaged names
            return _Pickle(archive).run(program)
    except (ValueError, IndexError, KeyError, TypeError) as error:  # not a valid pickle program
        raise corrupt(path, "its list of tensors is damaged") from error


class _Archive:
    """The members of the zip file, as ranges of the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise corrupt(path, "it is not a whole zip archive") from error
        self._member_of_name = {member.filename.partition("/")[2]: member for member in members}

    def read(self, name: str) -> bytes:
        start, n_bytes = self._range(name)
        if n_bytes > _MAX_PICKLE_BYTES:
            raise corrupt(self.path, f"its member {name} is far larger than it can be")
        return self._file.read(start, n_bytes, f"the member {name}")

    def tensor(self, storage: _Storage, offset: int, shape: Shape, strides: Shape) -> LazyTensor:
        """A tensor in a storage; `offset` and `strides` count items."""
        start, n_bytes = self._range(name := f"data/{storage.key}")
        item_bytes = 4 if storage.dtype == "float32" else 2
        n_items = math.prod(shape)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if n_items else -1
        # The item count is checked too: a stride of 0 could make a small storage look like a huge tensor.
        if (offset + max(n_items, last + 1)) * item_bytes > n_bytes:
            raise corrupt(self.path, "a tensor is larger than the data stored for it")
        flat = self._file.tensor(name, start + offset * item_bytes, storage.dtype, (last + 1,))
        return LazyTensor(shape, partial(_strided, flat, shape, strides))

    def _range(self, name: str) -> tuple[int, int]:
        member = self._member_of_name.get(name)
        what = f"the member {printable(name)}"
        if member is None:
            raise corrupt(self.path, f"{what} is missing")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise corrupt(self.path, f"{what} is compressed, which torch never does")
        header = self._file.read(member.header_offset, _LOCAL_HEADER_BYTES, what)
        if header[:4] != b"PK\x03\x04":
            raise corrupt(self.path, f"{what} is not where the archive says")
        n_name, n_extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        start = member.header_offset + _LOCAL_HEADER_BYTES + n_name + n_extra
        if start + member.file_size > self._file.n_bytes:
            raise corrupt(self.path, f"{what} ends beyond the end of the file")
        return start, member.file_size


def _strided(flat: LazyTensor, shape: Shape, strides: Shape) -> Array:
    items = flat.load()
    in_bytes = tuple(stride * items.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(items, shape, in_bytes, writeable=False)


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str


class _Mark:
    pass


class _Pickle:
    """An interpreter of the subset of pickle that tensors are written in."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._actions: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_Mark()),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "TUPLE": lambda _: self._stack.append(tuple(self._pop_to_mark())),
            "APPEND": lambda _: self._append([self._stack.pop()]),
            "APPENDS": lambda _: self._append(self._pop_to_mark()),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._pop_to_mark()),
            "GLOBAL": lambda name: self._stack.append(self._global(*name.split(" ", 1))),
            "STACK_GLOBAL": lambda _: self._stack.append(self._global(*self._pop(2))),
            "BINPERSID": lambda _: self._stack.append(self._storage(self._stack.pop())),
            "REDUCE": lambda _: self._call(*self._pop(2)),
            "BUILD": lambda _: self._build(self._stack.pop()),
            "MEMOIZE": lambda _: self._memoize(len(self._memo)),
            "BINPUT": self._memoize,
            "LONG_BINPUT": self._memoize,
            "BINGET": lambda key: self._stack.append(self._memo[key]),
            "LONG_BINGET": lambda key: self._stack.append(self._memo[key]),
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
        }

    def run(self, program: bytes) -> object:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name == "STOP":
                return self._stack.pop()
            if opcode.name in _LITERALS:
                self._stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            elif opcode.name in _TUPLE_SIZES:
                self._stack.append(tuple(self._pop(_TUPLE_SIZES[opcode.name])))
            elif opcode.name in self._actions:
                self._actions[opcode.name](argument)
            else:
                raise self._refused(f"the pickle instruction {opcode.name}")
        raise ValueError("no end")

    def _refused(self, what: str) -> ModelCorrupt:
        return ModelCorrupt(
            f"{self._archive.path}: it uses {what}, which a file of weights does not need; Choral runs no code from "
            "files. Fetch the official model, or save this one's state_dict alone."
        )

    def _pop(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def _pop_to_mark(self) -> list[Any]:
        items = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def _memoize(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("items without a list")
        self._stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict) or len(items) % 2:
            raise TypeError("items without a dictionary")
        keys = items[::2]
        if not all(isinstance(key, str | int) for key in keys):
            raise TypeError("a key that is no string")
        self._stack[-1].update(zip(keys, items[1::2], strict=True))

    def _global(self, module: object, name: object) -> _Global:
        full_name = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""
        if full_name not in _CALLABLE and full_name not in _DTYPE_OF_STORAGE:
            raise self._refused(printable(full_name) or "a global without a name")
        return _Global(full_name)

    def _storage(self, identity: Any) -> _Storage:
        kind, storage_type, key, _device, _count = identity
        if kind != "storage" or not isinstance(storage_type, _Global) or not isinstance(key, str):
            raise TypeError("no storage")
        return _Storage(_DTYPE_OF_STORAGE[storage_type.name], key)

    def _call(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise TypeError("no function")
        if function.name == "collections.OrderedDict" and not arguments:
            self._stack.append({})
        elif function.name == "torch._utils._rebuild_tensor_v2":
            self._stack.append(self._tensor(*arguments[:4]))
        elif function.name == "torch._utils._rebuild_parameter" and isinstance(arguments[0], LazyTensor):
            self._stack.append(arguments[0])
        else:
            raise TypeError("wrong arguments")

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> LazyTensor:
        if not isinstance(storage, _Storage) or not is_shape([offset]) or not is_shape(shape) or len(shape) > 8:
            raise TypeError("no tensor")
        if not is_shape(strides) or len(strides) != len(shape):
            raise TypeError("no strides")
        return self._archive.tensor(storage, offset, tuple(shape), tuple(strides))

    def _build(self, state: object) -> None:
        """Ignore attributes of an OrderedDict: torch stores module versions there, which do not concern the weights."""
        if not isinstance(state, dict) or not isinstance(self._stack[-1], dict):
            raise self._refused("an object with a state of its own")
