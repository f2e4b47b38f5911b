"""The uvicorn server under the application: a socket of ours, a drain that refuses newcomers, and limits on waiting.

uvicorn waits for ever for the headers of a request; a connection that does not send them in time is closed here.
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

from choral.common.aio import cancel_tasks
from choral.errors import UsageError
from choral.server.service import Service

log = logging.getLogger("choral.server")
CONNECTIONS_WAITING = 2048
FORCE_EXIT_LOOK_S = 0.1  # uvicorn's own way to hear of a second signal


class HeaderTimeoutProtocol(H11Protocol):
    """Times of bodies are the forms' affair; this one looks after everything before them."""

    headers_s = 20.0
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_be()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._let_be()  # between two requests uvicorn's own keep-alive limit holds

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._let_be()
        elif self._closing is None:
            self._closing = self.loop.call_later(self.headers_s, self.transport.close)

    def _let_be(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class Listener(uvicorn.Server):
    """The first signal drains it, the second ends it at once."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        stall_s = service.settings.upload_stall_s
        protocol = type("Protocol", (HeaderTimeoutProtocol,), {"headers_s": stall_s})  # uvicorn makes each by itself
        self._drain_s = service.settings.drain_s
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="websockets-sansio",
                ws_max_size=2 * service.settings.realtime_message_bytes,  # up to there, a session itself says no
                ws_per_message_deflate=False,  # sound hardly shrinks, and the event loop would have to pack it
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=CONNECTIONS_WAITING,
                timeout_graceful_shutdown=max(1, round(self._drain_s)),
            )
        )
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._service.requests.is_closing = self._service.uploads.is_closing = True
        self._service.realtime.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Live sessions finish what was said before uvicorn, which would cut them off, ends all connections."""
        started_s = time.monotonic()
        draining = asyncio.create_task(self._service.realtime.drain())
        while not (draining.done() or self.force_exit or time.monotonic() - started_s > self._drain_s):
            await asyncio.wait([draining], timeout=FORCE_EXIT_LOOK_S)
        await cancel_tasks([draining])
        self.config.timeout_graceful_shutdown = max(1, round(self._drain_s - (time.monotonic() - started_s)))
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """The address is taken, and known; connections come once somebody listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UsageError(
            f"nothing can listen at {host}:{port} ({error.strerror}): choose another --host or --port"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """With which a program on this machine reaches it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
