"""Connects a WebSocket to its session: passes messages to the session's thread, and its events back to the client.

It runs in the event loop of the server or of a session process.

The event loop does nothing else; the session's thread parses messages, resamples audio and detects speech. A client is
read only while few of its messages wait to be handled and few events wait to be sent, so it cannot fill the memory. A
client that does not read its events is disconnected by `WebSocketProtocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from starlette.types import Message

from choral.common.aio import cancel_tasks, run_in_thread
from choral.server.api_errors import ApiError
from choral.server.realtime import server_events
from choral.server.realtime.outbox import CloseConnection, Outbox, call_in_loop
from choral.server.realtime.session import Session, SessionDeps, SessionStart
from choral.server.realtime.session_host import SessionHost
from choral.server.realtime.session_inbox import (
    ClientDisconnected,
    ClientMessage,
    FinishAndClose,
    Incoming,
    RejectedMessage,
)

MAX_READ_AHEAD, MAX_READ_AHEAD_BYTES = 8, 256 * 2**10  # the last message may be larger
NORMAL, GOING_AWAY, POLICY_VIOLATION, INTERNAL_ERROR = 1000, 1001, 1008, 1011  # close codes
THREAD_EXIT_S = 5.0
LAST_EVENTS_S = 5.0  # to send what is queued when a session ends
CLOSE_S = 1.0  # to close a connection whose client does not read


class EventSocket(Protocol):
    """A WebSocket, or an adapter that translates another protocol to OpenAI's events."""

    async def receive(self) -> Message: ...

    async def send_text(self, text: str, /) -> None: ...

    async def close(self, code: int, reason: str, /) -> None: ...


class WebSocketConnection:
    def __init__(
        self, websocket: EventSocket, host: SessionHost, start: SessionStart, charge: Callable[[float], None]
    ) -> None:
        """`charge` is called in the event loop with seconds of audio; an `ApiError` of it ends the session."""
        self._websocket, self._limits, self._charge_audio = websocket, host.limits, charge
        self._handler_slots = host.slots
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Incoming] = SimpleQueue()
        # Messages of the client: those put into the inbox, counted in the event loop, and those handled, by the thread.
        self._n_read = self._n_handled = self._read_bytes = self._handled_bytes = 0
        self._is_reader_waiting = False
        self._progress = asyncio.Event()  # set when a message was handled or sent, if the reader waits for it
        self._is_too_slow = asyncio.Event()  # the client does not read its events
        self._outbox = Outbox(on_taken=self._progress.set, on_overflow=self._is_too_slow.set)
        self._is_refused = self._is_over = False
        self._closing: CloseConnection | None = None  # once all before it is sent
        self._last_read_s = self._loop.time()
        deps = SessionDeps(
            transcriber=host.transcriber,
            names=host.names,
            max_buffered_s=host.limits.buffer_s,
            metrics=host.metrics,
            post=self._inbox.put,
            send=self._send,
            charge=lambda duration_s: call_in_loop(self._loop, self._charge, duration_s),
        )
        self._session = Session(deps, start)

    def drain(self) -> None:
        self._inbox.put(FinishAndClose(GOING_AWAY, "the server is shutting down"))

    def finish(self) -> None:
        """Transcribe what was said so far, then close: for protocols in which the client asks for that."""
        self._inbox.put(FinishAndClose(NORMAL, "the client has finished"))

    def refuse(self, error: ApiError) -> None:
        """The key of the session is over a limit: end it."""
        self._is_refused = True
        self._send(server_events.error(error))
        self._send(CloseConnection(POLICY_VIOLATION, "over a limit of the key"))

    async def run(self) -> None:
        """Serve the session until either side ends it or the client is too slow."""
        session = asyncio.create_task(run_in_thread(self._run_session, "realtime"))
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        too_slow = asyncio.create_task(self._is_too_slow.wait())
        idle = asyncio.create_task(self._watch_idle())
        try:
            await asyncio.wait([session, reader, writer, too_slow], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            self._session.cancel()
            self._inbox.put(ClientDisconnected())
            await cancel_tasks([reader, writer, too_slow, idle])
            await asyncio.wait([session], timeout=THREAD_EXIT_S)
        for task in (session, reader, writer):
            if task.done() and not task.cancelled():
                task.result()
        if self._closing is None and self._is_too_slow.is_set():
            self._closing = CloseConnection(POLICY_VIOLATION, "the client does not read its events")

    async def close(self) -> None:
        """After `run`, once its place is free: a client that connects again when it is told finds it so."""
        if self._closing is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._websocket.close(self._closing.code, self._closing.reason)

    def _run_session(self) -> None:
        """The session's thread."""
        self._session.start()
        try:
            while not isinstance(message := self._inbox.get(), ClientDisconnected) and not self._is_over:
                with self._handler_slots:
                    self._session.handle(message)
                if isinstance(message, ClientMessage | RejectedMessage):
                    self._count_handled(message)
        finally:
            self._session.end()

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            self._last_read_s = self._loop.time()
            incoming = self._check_message(message.get("text"))
            self._n_read += 1
            self._read_bytes += _size(incoming)
            self._inbox.put(incoming)

    async def _watch_idle(self) -> None:
        """After the idle timeout, the session is asked to finish."""
        idle_s = self._limits.idle_s
        while (left_s := self._last_read_s + idle_s - self._loop.time()) > 0:
            await asyncio.sleep(left_s)
        self._inbox.put(FinishAndClose(NORMAL, f"no message arrived for {idle_s:g} s"))

    async def _receive(self) -> Message:
        while not self._can_read():
            self._progress.clear()
            self._is_reader_waiting = True  # before the check: a message that is handled after it wakes the reader
            if not self._can_read():
                await self._progress.wait()
            self._is_reader_waiting = False
        return await self._websocket.receive()

    def _can_read(self) -> bool:
        n_unhandled = self._n_read - self._n_handled
        has_room = n_unhandled < MAX_READ_AHEAD and self._read_bytes - self._handled_bytes < MAX_READ_AHEAD_BYTES
        return has_room and self._outbox.is_low and not self._is_refused

    def _count_handled(self, message: ClientMessage | RejectedMessage) -> None:
        """On the session's thread."""
        self._handled_bytes += _size(message)
        self._n_handled += 1
        if self._is_reader_waiting:
            call_in_loop(self._loop, self._progress.set)

    def _check_message(self, text: str | None) -> ClientMessage | RejectedMessage:
        max_bytes = self._limits.message_bytes
        if text is None:
            return RejectedMessage(
                "send audio as base64 in input_audio_buffer.append, not as binary messages", "binary_message"
            )
        if len(text) > max_bytes:
            reason = f"the message has {len(text)} characters, and {max_bytes} are the maximum: send smaller messages"
            return RejectedMessage(reason, "message_too_large")
        return ClientMessage(text)

    def _send(self, message: server_events.Event | CloseConnection) -> None:
        """Queue a message, on any thread; the client has limited time to read up to the last one."""
        self._outbox.put(message)
        if isinstance(message, CloseConnection):
            call_in_loop(self._loop, self._loop.call_later, LAST_EVENTS_S, self._is_too_slow.set)

    async def _write(self) -> None:
        while not isinstance(message := await self._outbox.get(), CloseConnection):
            await self._websocket.send_text(message)
        self._closing = message

    def _charge(self, duration_s: float) -> None:
        """Charge audio that was accepted; it may exceed the limit of the key by the last seconds."""
        try:
            self._charge_audio(duration_s)
        except ApiError as error:
            self.refuse(error)


def _size(message: ClientMessage | RejectedMessage) -> int:
    """In memory: characters of a string that is not ASCII take up to four bytes each."""
    return sys.getsizeof(message.text) if isinstance(message, ClientMessage) else 0
