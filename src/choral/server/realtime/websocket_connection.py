"""A WebSocket and its session: messages are carried to the session's thread, and what it has to say back.

Nothing else happens in the event loop; messages are parsed, sound is resampled and heard on the thread. It takes a few
messages ahead and no more, so that a client cannot fill the memory.
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
from choral.server.realtime.session import Session, SessionDeps
from choral.server.realtime.session_config import SessionConfig, TranscriptionConfig
from choral.server.realtime.session_messages import (
    AudioReceived,
    ClientDisconnected,
    ClientMessage,
    CloseConnection,
    FinishAndClose,
    Incoming,
    Outgoing,
    RejectedMessage,
)
from choral.server.service import Service

MESSAGES_AHEAD = 8
MOST_UNSENT = 4096  # events that wait for a client that does not read
NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
CLOSING_S = 5.0


class RealtimeConnection:
    def __init__(self, websocket: WebSocket, service: Service, model: str, *, is_beta: bool) -> None:
        self._websocket, self._settings = websocket, service.settings
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Incoming] = SimpleQueue()
        self._outbox: asyncio.Queue[Outgoing] = asyncio.Queue()
        self._ahead = asyncio.Semaphore(MESSAGES_AHEAD)
        around = SessionDeps(
            transcriber=service.model.transcriber,
            models=model_names(service),
            buffer_s=service.settings.realtime_buffer_s,
            metrics=service.realtime.metrics,
            post=self._inbox.put,
            send=lambda message: self._in_loop(self._outbox.put_nowait, message),
        )
        self._session = Session(around, SessionConfig(TranscriptionConfig(model)), is_beta=is_beta)

    def drain(self) -> None:
        self._inbox.put(FinishAndClose(GOING_AWAY, "the server is being shut down"))

    async def run(self) -> None:
        """Until the client leaves, or is told to."""
        worker = asyncio.create_task(run_in_thread(self._work, "live"))
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait([worker, reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._session.give_up()
            self._inbox.put(ClientDisconnected())
            await cancel_tasks([reader, writer])
            await asyncio.wait([worker], timeout=CLOSING_S)
            self._charge_rest()
        for task in (worker, reader, writer):
            if task.done() and not task.cancelled():
                task.result()

    def _work(self) -> None:
        """The session's thread."""
        self._session.begin()
        try:
            while not isinstance(message := self._inbox.get(), ClientDisconnected):
                self._session.take(message)
                if isinstance(message, ClientMessage | RejectedMessage):
                    self._in_loop(self._ahead.release)
        finally:
            self._session.end()

    async def _read(self) -> None:
        while True:
            await self._ahead.acquire()
            message = await self._next_message()
            if message["type"] == "websocket.disconnect":
                return
            self._inbox.put(self._checked(message.get("text")))

    async def _next_message(self) -> Message:
        idle_s = self._settings.realtime_idle_s
        receiving = asyncio.create_task(self._websocket.receive())
        try:
            await asyncio.wait([receiving], timeout=idle_s)
            if not receiving.done():
                self._inbox.put(FinishAndClose(NORMAL, f"nothing came for {idle_s:g} s"))
            return await receiving
        finally:
            receiving.cancel()

    def _checked(self, text: str | None) -> Incoming:
        most = self._settings.realtime_message_bytes
        if text is None:
            return RejectedMessage(
                "send audio as base64 in input_audio_buffer.append, not as binary messages", "binary_message"
            )
        if len(text) > most:
            why = (
                f"the message has {len(text)} characters and was not taken: {most} are the most, so send less at a time"
            )
            return RejectedMessage(why, "message_too_large")
        return ClientMessage(text)

    async def _write(self) -> None:
        while True:
            message = await self._outbox.get()
            if self._outbox.qsize() > MOST_UNSENT:
                await self._websocket.close(POLICY, "events are not read")
                return
            match message:
                case CloseConnection(code, reason):
                    await self._websocket.close(code, reason)
                    return
                case AudioReceived(seconds):
                    try:
                        principal_of(self._websocket).charge(seconds)
                    except ApiError as problem:
                        await self._send(server_events.error(problem, None))
                        await self._websocket.close(POLICY, "over a limit of the key")
                        return
                case _:
                    await self._send(message)

    async def _send(self, event: server_events.Event) -> None:
        await self._websocket.send_text(json.dumps(event))  # ASCII: what a client sent as half a letter is sent back

    def _charge_rest(self) -> None:
        """The last seconds; they were heard, whatever the limit says."""
        while not self._outbox.empty():
            if isinstance(message := self._outbox.get_nowait(), AudioReceived):
                with contextlib.suppress(ApiError):
                    principal_of(self._websocket).charge(message.seconds)

    def _in_loop(self, call: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *arguments)
