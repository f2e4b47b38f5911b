"""Connects a WebSocket to its session: passes messages to the session's thread, and its events back to the client.

The event loop does nothing else; the session's thread parses messages, resamples audio and detects speech. Only a few
messages are read ahead of it, so a client cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from queue import SimpleQueue
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket

from choral.common.aio import cancel_tasks, run_in_thread
from choral.server.api_errors import ApiError
from choral.server.openai import model_names
from choral.server.quota import principal_of
from choral.server.realtime import server_events
from choral.server.realtime.session import (
    AudioReceived,
    ClientDisconnected,
    ClientMessage,
    CloseConnection,
    FinishAndClose,
    Incoming,
    Outgoing,
    RejectedMessage,
    Session,
    SessionDeps,
)
from choral.server.service import Service

MAX_READ_AHEAD = 8  # messages
MAX_UNSENT = 4096  # events waiting for a client that does not read
NORMAL, GOING_AWAY, POLICY_VIOLATION = 1000, 1001, 1008  # close codes
THREAD_EXIT_S = 5.0


class WebSocketConnection:
    def __init__(self, websocket: WebSocket, service: Service, model: str, *, is_beta: bool) -> None:
        self._websocket, self._settings = websocket, service.settings
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Incoming] = SimpleQueue()
        self._outbox: asyncio.Queue[Outgoing] = asyncio.Queue()
        self._read_ahead = asyncio.Semaphore(MAX_READ_AHEAD)
        deps = SessionDeps(
            transcriber=service.model.transcriber,
            model_names=model_names(service),
            max_buffered_s=service.settings.realtime_buffer_s,
            metrics=service.realtime.metrics,
            post=self._inbox.put,
            send=lambda message: self._call_in_loop(self._outbox.put_nowait, message),
        )
        self._session = Session(deps, model, is_beta=is_beta)

    def drain(self) -> None:
        self._inbox.put(FinishAndClose(GOING_AWAY, "the server is shutting down"))

    async def run(self) -> None:
        """Serve the session until either side closes it."""
        session = asyncio.create_task(run_in_thread(self._run_session, "realtime"))
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait([session, reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._session.cancel()
            self._inbox.put(ClientDisconnected())
            await cancel_tasks([reader, writer])
            await asyncio.wait([session], timeout=THREAD_EXIT_S)
            self._charge_remaining()
        for task in (session, reader, writer):
            if task.done() and not task.cancelled():
                task.result()

    def _run_session(self) -> None:
        """The session's thread."""
        self._session.start()
        try:
            while not isinstance(message := self._inbox.get(), ClientDisconnected):
                self._session.handle(message)
                if isinstance(message, ClientMessage | RejectedMessage):
                    self._call_in_loop(self._read_ahead.release)
        finally:
            self._session.end()

    async def _read(self) -> None:
        while True:
            await self._read_ahead.acquire()
            message = await self._next_message()
            if message["type"] == "websocket.disconnect":
                return
            self._inbox.put(self._check_message(message.get("text")))

    async def _next_message(self) -> Message:
        """The next message; after the idle timeout, the session is asked to finish."""
        idle_s = self._settings.realtime_idle_s
        receiving = asyncio.create_task(self._websocket.receive())
        try:
            await asyncio.wait([receiving], timeout=idle_s)
            if not receiving.done():
                self._inbox.put(FinishAndClose(NORMAL, f"no message arrived for {idle_s:g} s"))
            return await receiving
        finally:
            receiving.cancel()

    def _check_message(self, text: str | None) -> Incoming:
        max_bytes = self._settings.realtime_message_bytes
        if text is None:
            return RejectedMessage(
                "send audio as base64 in input_audio_buffer.append, not as binary messages", "binary_message"
            )
        if len(text) > max_bytes:
            reason = f"the message has {len(text)} characters, and {max_bytes} are the maximum: send smaller messages"
            return RejectedMessage(reason, "message_too_large")
        return ClientMessage(text)

    async def _write(self) -> None:
        while True:
            message = await self._outbox.get()
            if self._outbox.qsize() > MAX_UNSENT:
                await self._websocket.close(POLICY_VIOLATION, "the client does not read its events")
                return
            match message:
                case CloseConnection(code, reason):
                    await self._websocket.close(code, reason)
                    return
                case AudioReceived(duration_s):
                    try:
                        principal_of(self._websocket).charge(duration_s)
                    except ApiError as error:
                        await self._send(server_events.error(error))
                        await self._websocket.close(POLICY_VIOLATION, "over a limit of the key")
                        return
                case _:
                    await self._send(message)

    async def _send(self, event: server_events.Event) -> None:
        # ASCII, because an event may quote a lone surrogate that the client sent.
        await self._websocket.send_text(json.dumps(event))

    def _charge_remaining(self) -> None:
        """Charge the last seconds, which were accepted, even if they exceed the limit of the key."""
        while not self._outbox.empty():
            if isinstance(message := self._outbox.get_nowait(), AudioReceived):
                with contextlib.suppress(ApiError):
                    principal_of(self._websocket).charge(message.duration_s)

    def _call_in_loop(self, call: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)
