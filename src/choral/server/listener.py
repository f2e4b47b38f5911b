"""The uvicorn server: graceful shutdown that refuses new requests first, limits on connections, and memory trimming."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from choral.common.aio import cancel_tasks
from choral.common.malloc import trim_memory_periodically
from choral.errors import UsageError
from choral.server.limited_protocol import LimitedProtocol
from choral.server.realtime.websocket_protocol import WebSocketProtocol
from choral.server.service import Service

log = logging.getLogger("choral.server")
BACKLOG = 2048  # connections that the kernel queues
FORCE_EXIT_POLL_S = 0.1  # uvicorn reports a second signal only through a flag
RESERVED_FILES = BACKLOG + 512  # connections accepted in one go before any can be closed, and all other files


class Listener(uvicorn.Server):
    """The first signal starts a graceful shutdown, the second exits at once."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        settings = service.settings
        # uvicorn instantiates the class itself, so the limits are class attributes.
        limits = {
            "headers_timeout_s": settings.upload_stall_s,
            "response_stall_s": settings.response_stall_s,
            "max_connections": min(settings.connections, allowed_connections(settings.connections)),
            "without_request": {},
        }
        protocol = type("Protocol", (LimitedProtocol,), limits)
        websocket_protocol = type("WebSocket", (WebSocketProtocol,), {"send_timeout_s": settings.realtime_send_s})
        self._drain_s = settings.drain_s
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
        start = self._service.loops.start
        tasks = [
            start(trim_memory_periodically(), "memory trimming"),
            start(self._abort_stuck_connections(), "the check for stuck connections"),
        ]
        try:
            await super().serve(sockets)
        finally:
            await cancel_tasks(tasks)

    async def _abort_stuck_connections(self) -> None:
        """Abort connections that were closed a while ago: each waits for a client that does not read its last bytes."""
        closing: set[Any] = set()
        while True:
            await asyncio.sleep(self._service.settings.response_stall_s)
            found = {connection for connection in self.server_state.connections if connection.transport.is_closing()}
            for connection in closing & found:
                connection.transport.abort()
            closing = found - closing

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


def allowed_connections(requested: int) -> int:
    """How many connections the limit on open files leaves room for; it is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return requested
    needed = requested + RESERVED_FILES
    if soft < needed and (hard == resource.RLIM_INFINITY or soft < hard):
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = max(soft // 2, soft - RESERVED_FILES)
    if allowed < requested:
        log.warning("at most %d connections: raise the limit on open files (ulimit -n) for more", allowed)
    return allowed


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
