"""HTTP requests in the usual shape, without the general parser: reading and answering one takes a quarter of its time.

The usual shape is what common clients send: HTTP/1.1 GET or POST, the whole head in one piece, one Host, a body of a
declared length, and nothing that changes the connection. For any other head `read_head` returns None, and the general
parser reads it, or refuses it. `RegularCycle` is the ASGI side of one such request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from choral.server.disconnect import EXTENSION, DisconnectWatch

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 64
_REQUEST_LINE = re.compile(rb"(GET|POST) (/[!-~]*) HTTP/1\.1")
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # all but the tab
_LENGTH = re.compile(rb"[0-9]{1,18}")
_SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})
_UNSENDABLE = re.compile(rb"[\x00\r\n]")
_WITHOUT_BODY = (204, 304)
_STATUS_LINES = {int(status): f"HTTP/1.1 {status:d} {status.phrase}\r\n".encode() for status in HTTPStatus}


class RequestHead(NamedTuple):
    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    body_bytes: int
    n_bytes: int  # of the head itself


def read_head(data: bytes) -> RequestHead | None:
    """The head at the start of `data`; None for one that only the general parser can read."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        return None
    line, *fields = data[:end].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    headers = None if found is None or len(fields) > MAX_HEADERS else _read_fields(fields)
    if found is None or headers is None:
        return None
    names = [name for name, _ in headers]
    lengths = [value for name, value in headers if name == b"content-length"]
    if names.count(b"host") != 1 or not _SPECIAL.isdisjoint(names) or len(lengths) > 1:
        return None
    if any(name == b"connection" and value.lower() != b"keep-alive" for name, value in headers):
        return None
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        return None
    n_body = int(lengths[0]) if lengths else 0
    return RequestHead(found[1].decode(), found[2], headers, n_body, end + 4)


def _read_fields(lines: list[bytes]) -> list[tuple[bytes, bytes]] | None:
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            return None
        headers.append((name.lower(), value.strip(b" \t")))
    return headers


class RegularCycle(RequestResponseCycle):
    """One request and its response. What is sent within one step of the event loop is written to the socket once."""

    def __init__(self, protocol: H11Protocol, scope: Any, body_bytes: int, on_response: Callable[[], None]) -> None:
        super().__init__(
            scope=scope,
            conn=protocol.conn,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=protocol.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=on_response,
        )
        self.body_left = body_bytes  # to be received
        self.disconnect = DisconnectWatch()
        scope["extensions"] = {EXTENSION: self.disconnect}
        self._loop = protocol.loop
        self._pieces: list[bytes] = []  # of the body, that were received and not taken
        self._n_waiting = 0  # their bytes
        self._unsent: list[bytes] = []
        self._n_unsent = 0
        self._will_flush = False
        self._is_chunked = False
        self._response_left: int | None = None  # bytes of the declared length
        if not body_bytes:
            self.feed(b"")

    # The request

    def feed(self, data: bytes) -> bytes:
        """Take the body from what was received; returns what is beyond it."""
        rest = data[self.body_left :]
        piece = data[: self.body_left] if rest else data
        self.body_left -= len(piece)
        self.more_body = self.body_left > 0
        if not self.response_complete:
            if piece:
                self._pieces.append(piece)
                self._n_waiting += len(piece)
                if self._n_waiting > HIGH_WATER_LIMIT and self.more_body:
                    self.flow.pause_reading()
            self.message_event.set()
        return rest

    async def receive(self) -> Any:
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._n_waiting = [], 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # The response

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"the application sent {message['type']} out of order")
        if not self.response_started:
            self.response_started = True
            self._write(self._head(message["status"], list(message.get("headers", ()))))
            return
        more_body = message.get("more_body", False)
        self._write(self._framed(message.get("body", b""), is_last=not more_body))
        if not more_body:
            if self._response_left:
                raise RuntimeError("the response is shorter than its Content-Length")
            self.response_complete = True
            self.message_event.set()
            self._flush()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        names = {name.lower(): value for name, value in headers}
        if b"close" in names.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        if status in _WITHOUT_BODY:
            self._response_left = 0
        elif b"content-length" in names:
            self._response_left = int(names[b"content-length"])
        else:
            self._is_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        for name, value in headers:
            if not _NAME.fullmatch(name) or _UNSENDABLE.search(value):
                raise RuntimeError(f"the header {name!r} of the response cannot be sent")
        lines = [name + b": " + value + b"\r\n" for name, value in (*self.default_headers, *headers)]
        return b"".join([_STATUS_LINES.get(status, b"HTTP/1.1 %d \r\n" % status), *lines, b"\r\n"])

    def _framed(self, body: bytes, *, is_last: bool) -> bytes:
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk + b"0\r\n\r\n" if is_last else chunk
        assert self._response_left is not None
        self._response_left -= len(body)
        if self._response_left < 0:
            raise RuntimeError("the response is longer than its Content-Length")
        return body

    def _write(self, data: bytes) -> None:
        self._unsent.append(data)
        self._n_unsent += len(data)
        if self._n_unsent > HIGH_WATER_LIMIT:
            self._flush()
        elif not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if self._unsent and not self.disconnected:
            self.transport.write(b"".join(self._unsent))
        self._unsent, self._n_unsent = [], 0
