"""The uvicorn server: graceful shutdown that refuses new requests first, a timeout for headers, and memory trimming.

uvicorn waits for the headers of a request forever; this server closes a connection that does not send them in time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from choral.common.aio import cancel_tasks, run_in_thread
from choral.common.malloc import trim_malloc
from choral.errors import UsageError
from choral.server.realtime.websocket_protocol import WebSocketProtocol
from choral.server.service import Service

log = logging.getLogger("choral.server")
BACKLOG = 2048  # connections that the kernel queues
FORCE_EXIT_POLL_S = 0.1  # uvicorn reports a second signal only through a flag
TRIM_EVERY_S = 10.0


class HeaderTimeoutProtocol(H11Protocol):
    """Closes connections whose headers do not arrive in time; bodies have their own timeouts in `upload`."""

    headers_timeout_s = 20.0
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_timer()  # between requests uvicorn's keep-alive timeout applies

    def _update_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._closing is None:
            self._closing = self.loop.call_later(self.headers_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class Listener(uvicorn.Server):
    """The first signal starts a graceful shutdown, the second exits at once."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        stall_s = service.settings.upload_stall_s
        # uvicorn instantiates the class itself, so the timeout is a class attribute.
        protocol = type("Protocol", (HeaderTimeoutProtocol,), {"headers_timeout_s": stall_s})
        send_s = service.settings.realtime_send_s
        websocket_protocol = type("WebSocket", (WebSocketProtocol,), {"send_timeout_s": send_s})
        self._drain_s = service.settings.drain_s
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws=websocket_protocol,
                ws_max_size=2 * service.settings.realtime_message_bytes,  # below it, the session reports the limit
                ws_per_message_deflate=False,  # audio hardly compresses, and it would block the event loop
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=max(1, round(self._drain_s)),
            )
        )
        self._service = service

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        trimming = asyncio.create_task(trim_memory_periodically())
        try:
            await super().serve(sockets)
        finally:
            await cancel_tasks([trimming])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._service.requests.is_closing = self._service.uploads.is_closing = True
        self._service.realtime.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Live sessions finish their speech first: uvicorn's shutdown would cut them off."""
        started_s = time.monotonic()
        draining = asyncio.create_task(self._service.realtime.drain())
        while not (draining.done() or self.force_exit or time.monotonic() - started_s > self._drain_s):
            await asyncio.wait([draining], timeout=FORCE_EXIT_POLL_S)
        await cancel_tasks([draining])
        self.config.timeout_graceful_shutdown = max(1, round(self._drain_s - (time.monotonic() - started_s)))
        await super().shutdown(sockets)


async def trim_memory_periodically() -> None:
    """Return free heap memory to the system: requests fragment the C heap, and a busy server would grow for hours."""
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await run_in_thread(trim_malloc, "malloc-trim")


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address; connections are accepted once it listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
        ) from error
    return bound


def local_url(bound: socket.socket) -> str:
    """The URL for clients on this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
