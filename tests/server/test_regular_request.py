"""HTTP requests in the usual shape: what the strict parser reads is what h11 reads, and the rest goes to h11."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import h11
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from choral.server.limited_protocol import LimitedProtocol
from choral.server.regular_request import MAX_HEAD_BYTES, read_head

USUAL = (
    b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/x?a=b%20c HTTP/1.1\r\nhost:a:1\r\nContent-Length: 3\r\nX: \t b c\t\r\nConnection: Keep-Alive\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nX-High: \xff\r\nContent-Length: 0\r\n\r\n",
)
UNUSUAL = (
    b"GET / HTTP/1.1\r\nHost: a\r\n",  # no end
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\x00c\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
    b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n",
)


@pytest.mark.parametrize("data", USUAL)
def test_usual_heads_are_read_as_by_h11(data: bytes) -> None:
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(data)
    event = parser.next_event()
    assert isinstance(event, h11.Request)
    head = read_head(data)
    assert head is not None
    assert (head.method.encode(), head.target, head.headers) == (event.method, event.target, list(event.headers))
    assert data[head.n_bytes :] == b"abc"[: head.body_bytes]


@pytest.mark.parametrize("data", UNUSUAL)
def test_other_heads_are_left_to_h11(data: bytes) -> None:
    assert read_head(data) is None


# Connections


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Echoes the body; by path: answers before it, in pieces, or with headers that cannot be sent."""
    body, has_more = b"", scope["path"] != "/early"
    while has_more:
        message = await receive()
        body, has_more = body + message["body"], message["more_body"]
    headers = [] if scope["path"] == "/pieces" else [(b"content-length", str(len(body)).encode())]
    if scope["path"] == "/split":
        headers.append((b"warning", b"a\r\nset-cookie: b"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/pieces":
        for piece in (b"one ", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if scope["path"] == "/pieces" else body})


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    protocol = type("Protocol", (LimitedProtocol,), {"without_request": {}})
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    config.load()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: protocol(config, server.server_state, {}), "127.0.0.1", 0)
    async with listening:
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        yield reader, writer
        writer.close()
        await writer.wait_closed()


def request(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


async def read_response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    fields: dict[bytes, Any] = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    return head.partition(b"\r\n")[0], await reader.readexactly(int(fields[b"content-length"]))


@pytest.mark.parametrize("cut", [1, 30, 60, 70])
def test_requests_in_any_pieces_and_one_after_another(cut: int) -> None:
    async def run() -> None:
        async with connected() as (reader, writer):
            for number in range(3):
                data = request("/", b"body %d" % number)
                writer.write(data[:cut])
                await asyncio.sleep(0.01)
                writer.write(data[cut:])
                assert await read_response(reader) == (b"HTTP/1.1 200 OK", b"body %d" % number)

    asyncio.run(run())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def run() -> None:
        async with connected() as (reader, writer):
            chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
            writer.write(request("/", b"one") + chunked + request("/", b"three"))
            assert [(await read_response(reader))[1] for _ in range(3)] == [b"one", b"two", b"three"]
            writer.write(request("/", b"four"))
            assert (await read_response(reader))[1] == b"four"

    asyncio.run(run())


def test_rest_of_a_body_that_was_not_needed_is_dropped() -> None:
    async def run() -> None:
        async with connected() as (reader, writer):
            data = request("/early", b"x" * 300_000)
            writer.write(data[:1000])
            assert (await read_response(reader))[0] == b"HTTP/1.1 200 OK"
            writer.write(data[1000:] + request("/", b"next"))
            assert (await read_response(reader))[1] == b"next"

    asyncio.run(run())


def test_response_without_a_length_is_chunked() -> None:
    async def run() -> None:
        async with connected() as (reader, writer):
            writer.write(request("/pieces", b""))
            assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"

    asyncio.run(run())


def test_header_with_a_line_break_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> bytes:
        async with connected() as (reader, writer):
            writer.write(request("/split", b""))
            return await reader.read()

    with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
        assert b"set-cookie" not in asyncio.run(run())
