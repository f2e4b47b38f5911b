"""Main of a session process: serves live sessions whose connections the server hands over.

The server authenticates and counts sessions, does the handshake, and sends the connection's descriptor; from then on
nothing of the session runs in it but charging its key. See `child_process` for what else a process promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.server import ServerState

from choral.audio import vad
from choral.common.aio import cancel_tasks, run_in_thread, server_loop_factory
from choral.common.malloc import frozen_gc, limit_malloc_arenas, trim_memory_periodically
from choral.errors import EngineClosed
from choral.longform.transcriber import Transcriber
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_host import SessionHost, handler_slots
from choral.server.realtime.session_messages import (
    decode_process_start,
    decode_refusal,
    decode_session_start,
)
from choral.server.realtime.websocket_connection import INTERNAL_ERROR, WebSocketConnection
from choral.server.realtime.websocket_protocol import AdoptedProtocol
from choral.serving.child_process import harden
from choral.serving.engine_client import connect
from choral.serving.replaceable_engine import ReplaceableEngine
from choral.serving.request_protocol import ProcessMessage, frame, receive

METRICS_INTERVAL_S = 0.5


def main(parent_pid: int, engine_fd: int) -> None:
    """Standard input is the connection to the parent."""
    harden(parent_pid)
    limit_malloc_arenas()
    channel = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    received = receive(channel)
    if received is None:
        return
    start = decode_process_start(received[0])
    transcriber = connect(socket.socket(fileno=engine_fd))
    # Now, so that the first session does not wait for them.
    importlib.import_module("choral.audio.resample")
    vad.load()
    engine = ReplaceableEngine(transcriber.engine)
    metrics = BatchedMetrics()
    host = SessionHost(
        transcriber=Transcriber(engine, transcriber.tokenizer, transcriber.dims),
        names=start.names,
        limits=start.limits,
        metrics=metrics,
        slots=handler_slots(start.n_processes),
    )
    with frozen_gc(), asyncio.Runner(loop_factory=server_loop_factory()) as runner:
        runner.run(SessionProcess(channel, host, engine, metrics).serve())
    os._exit(0)  # without waiting for threads: the parent is gone


class BatchedMetrics:
    """Collects what sessions observe, for one message now and then. Safe to use from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._audio_s = 0.0
        self._text_s: list[float] = []
        self._completed_s: list[float] = []

    def add_audio(self, duration_s: float) -> None:
        with self._lock:
            self._audio_s += duration_s

    def observe_text(self, delay_s: float) -> None:
        with self._lock:
            self._text_s.append(delay_s)

    def observe_completed(self, delay_s: float) -> None:
        with self._lock:
            self._completed_s.append(delay_s)

    def take(self) -> ProcessMessage | None:
        """What was collected since the last call, as a message; None: nothing."""
        with self._lock:
            if not (self._audio_s or self._text_s or self._completed_s):
                return None
            message = ["metrics", self._audio_s, self._text_s, self._completed_s]
            self._reset()
        return message


class SessionProcess:
    """All methods run in the event loop, except `_receive_all`."""

    def __init__(
        self, channel: socket.socket, host: SessionHost, engine: ReplaceableEngine, metrics: BatchedMetrics
    ) -> None:
        self._channel, self._host, self._engine, self._metrics = channel, host, engine, metrics
        self._connections: dict[int, WebSocketConnection] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # of the connections
        self._opening: set[asyncio.Task[None]] = set()
        self._state = ServerState()
        limits = host.limits
        self._config = uvicorn.Config(
            _no_app, lifespan="off", log_config=None, ws_max_size=limits.frame_bytes, ws_per_message_deflate=False
        )
        self._config.load()
        self._protocol = type("AdoptedWebSocket", (AdoptedProtocol,), {"send_timeout_s": limits.send_s})

    async def serve(self) -> None:
        """Until the parent closes the connection."""
        loops = [asyncio.create_task(self._send_metrics()), asyncio.create_task(trim_memory_periodically())]
        self.send(["ready"])
        loop = asyncio.get_running_loop()
        await run_in_thread(
            lambda: self._receive_all(lambda *arguments: loop.call_soon_threadsafe(self._handle, *arguments)),
            "session-channel",
        )
        await cancel_tasks(loops)

    def send(self, message: ProcessMessage) -> None:
        """Messages are few and short, and the parent reads them at once. If it is gone, `serve` ends."""
        with contextlib.suppress(OSError):
            self._channel.sendall(frame(message))

    def _receive_all(self, handle: Callable[[ProcessMessage, int | None], object]) -> None:
        while True:
            try:
                received = receive(self._channel)
            except (OSError, EOFError):
                return
            if received is None:
                return
            handle(*received)

    def _handle(self, message: ProcessMessage, fd: int | None) -> None:
        match message:
            case ["open", number, start]:
                assert fd is not None
                self._open(number, decode_session_start(start), socket.socket(fileno=fd))
            case ["engine"]:
                assert fd is not None
                self._track(self._reconnect(socket.socket(fileno=fd)))
            case ["drain", number] if number in self._connections:
                self._connections[number].drain()
            case ["refuse", number, error] if number in self._connections:
                self._connections[number].refuse(decode_refusal(error))
            case ["stop", number] if number in self._tasks:
                self._tasks[number].cancel()
            case ["alive"]:
                self.send(["alive"])

    def _open(self, number: int, start: SessionStart, connection: socket.socket) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            websocket = WebSocket(scope, receive, send)
            websocket.client_state = websocket.application_state = WebSocketState.CONNECTED
            with contextlib.suppress(WebSocketDisconnect, asyncio.CancelledError):
                await self._run(number, websocket, start)

        self._track(self._adopt(number, connection, self._protocol(self._config, self._state, app)))

    async def _adopt(self, number: int, connection: socket.socket, protocol: AdoptedProtocol) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # the client has left
            connection.close()
            self.send(["ended", number, None])

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _run(self, number: int, websocket: WebSocket, start: SessionStart) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[number] = task
        trace = None
        connection = WebSocketConnection(
            websocket, self._host, start, lambda duration_s: self.send(["charge", number, duration_s])
        )
        self._connections[number] = connection
        try:
            await connection.run()
        except WebSocketDisconnect:
            return
        except Exception:  # a bug ends the session, not the process; the server logs it
            trace = traceback.format_exc()
        finally:
            del self._connections[number], self._tasks[number]
            self.send(["ended", number, trace])
        if trace is not None:
            await websocket.close(INTERNAL_ERROR, "internal server error")
        await connection.close()

    async def _reconnect(self, connection: socket.socket) -> None:
        try:
            transcriber = await run_in_thread(lambda: connect(connection), "engine-connect")
        except EngineClosed:  # it has ended again: another connection follows
            return
        self._engine.replace(transcriber.engine)

    async def _send_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_INTERVAL_S)
            message = self._metrics.take()
            if message is not None:
                self.send(message)


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError("every connection brings its own")
