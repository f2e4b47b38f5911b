"""Reads protobuf messages from a mapped file, field by field, without a schema; bytes are ranges, not copies.

Every length is checked against the message around it: a damaged file becomes a `ModelCorrupt`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from choral.model.checkpoint import Array
from choral.model.weights.mapped_file import MappedFile, corrupt

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # the ways in which a field is written
_MAX_VARINT_BITS = 63


@dataclass(frozen=True)
class ProtobufMessage:
    """A range of bytes of the file: a message, a string, or packed numbers."""

    file: MappedFile
    start: int
    end: int

    @classmethod
    def of_file(cls, file: MappedFile) -> ProtobufMessage:
        return cls(file, 0, file.n_bytes)

    def fields(self) -> Iterator[tuple[int, int | ProtobufMessage]]:
        """The number of each field, and its value: a number, or a range of bytes."""
        position = self.start
        while position < self.end:
            key, position = self._varint(position)
            field, kind = key >> 3, key & 7
            if kind == _VARINT:
                value, position = self._varint(position)
                yield field, value
                continue
            if kind == _BYTES:
                size, position = self._varint(position)
            elif kind in (_FIXED_32, _FIXED_64):
                size = 4 if kind == _FIXED_32 else 8
            else:
                raise corrupt(self.file.path, "it is not a protobuf message")
            if position + size > self.end:
                raise corrupt(self.file.path, "a part of it ends beyond the part that it belongs to")
            yield field, ProtobufMessage(self.file, position, position + size)
            position += size

    def messages(self, field: int) -> Iterator[ProtobufMessage]:
        return (value for number, value in self.fields() if number == field and isinstance(value, ProtobufMessage))

    @property
    def view(self) -> Array:
        return self.file.view(self.start, self.end - self.start, "a part of it")

    @property
    def text(self) -> str:
        return self.file.read(self.start, self.end - self.start, "a name").decode("utf-8", "replace")

    def varints(self) -> Iterator[int]:
        """Packed whole numbers."""
        position = self.start
        while position < self.end:
            value, position = self._varint(position)
            yield value

    def floats(self) -> tuple[float, ...]:
        """Packed float32 numbers."""
        data = self.file.read(self.start, self.end - self.start, "a list of numbers")
        return struct.unpack(f"<{len(data) // 4}f", data[: len(data) // 4 * 4])

    def _varint(self, position: int) -> tuple[int, int]:
        """A whole number, seven bits in each byte and the lowest first, and the position after it."""
        value = 0
        for shift in range(0, _MAX_VARINT_BITS + 1, 7):
            if position >= self.end:
                raise corrupt(self.file.path, "a number in it is cut off")
            byte = self.file.byte(position)
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise corrupt(self.file.path, "a number in it is too long")
