"""The framing of Wyoming's protocol: a line of JSON, then `data_length` bytes of JSON, then `payload_length` bytes.

All three have limits. What is no such event is a `WyomingError`; so is an HTTP request that a browser was made to send.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from choral import __version__

MAX_LINE_BYTES = 64 * 1024
MAX_DATA_BYTES = 256 * 1024


class WyomingError(Exception):
    """The client sent something that is not the protocol."""


@dataclass(frozen=True)
class WyomingEvent:
    type: str
    data: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def encode(self) -> bytes:
        data = json.dumps(self.data, ensure_ascii=False).encode() if self.data else b""
        header = {"type": self.type, "version": __version__, "data_length": len(data)}
        return json.dumps(header).encode() + b"\n" + data


async def read_event(reader: asyncio.StreamReader, max_payload_bytes: int) -> WyomingEvent | None:
    """The next event; None at the end of the connection. The reader's limit must be `MAX_LINE_BYTES`."""
    try:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            return None
        header = _parse(line)
        data = _parse(await reader.readexactly(_length(header, "data_length", MAX_DATA_BYTES)) or b"{}")
        payload = await reader.readexactly(_length(header, "payload_length", max_payload_bytes))
    except asyncio.IncompleteReadError:
        return None
    except ValueError as error:  # a line that is too long, too
        raise WyomingError("this is not an event of the Wyoming protocol") from error
    kind, inline = header.get("type"), header.get("data") or {}
    if not isinstance(kind, str) or not isinstance(inline, dict):
        raise WyomingError("an event needs a type, and data that is an object")
    return WyomingEvent(kind, inline | data, payload)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise WyomingError("the JSON of an event is nested too deeply") from error
    if not isinstance(fields, dict):
        raise WyomingError("the JSON of an event must be an object")
    return fields


def _length(header: dict[str, Any], name: str, limit: int) -> int:
    length = header.get(name) or 0
    if type(length) is not int or not 0 <= length <= limit:
        raise WyomingError(f"{name} must be a whole number up to {limit}")
    return length
