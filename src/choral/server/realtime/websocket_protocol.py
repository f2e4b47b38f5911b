"""uvicorn's WebSocket protocol with limits on what a client can hold or occupy.

- A client that does not read is disconnected after `send_timeout_s`: a send would wait for it forever, and so would a
  close, because a transport closes only when its buffer is empty.
- Frames are parsed in the event loop, a small piece at a time. A connection whose frames are costly, such as a flood of
  empty ones, waits a while before the next, so it takes a small share of the event loop.
- Pongs do not fill the write buffer of a client that does not read.

A connection can be handed over to a session process after its handshake, and is `AdoptedProtocol` there. The socket is
then open in both processes; this one neither reads nor writes, unless the other process ends without closing it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from asyncio.transports import BaseTransport
from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import Protocol, Side, State

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication, ASGIReceiveEvent, ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState

KERNEL_BUFFER_BYTES = 128 * 2**10  # the kernel would hold megabytes for a client that does not read
PIECE_BYTES = 4 * 2**10  # 700 empty frames; a read may have 60 times as many
ADOPTED_PIECE_BYTES = 16 * 2**10  # more than 0.2 s of audio; a stall is felt by the sessions of one process only
COSTLY_S = 0.002  # CPU time of one piece: audio takes a tenth of a millisecond
PAUSE_PER_COST = 20.0  # so such a connection takes at most a twentieth of the event loop
MAX_FRAGMENTS = 4096  # of a message: its size does not limit empty ones
SHUTDOWN_S = 1.0  # to send what is buffered when the server stops
HANDOVER = "choral.handover"  # the ASGI extension: the protocol itself


class WebSocketProtocol(WebSocketsSansIOProtocol):
    send_timeout_s = 20.0
    piece_bytes = PIECE_BYTES
    _aborting: asyncio.TimerHandle | None = None
    _next_piece: asyncio.Handle | None = None
    _late_pong = b""
    _is_handed_over = False

    def connection_made(self, transport: BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        self._unparsed = bytearray()  # while it has any, nothing is read
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        is_alone = not self._unparsed and self._next_piece is None and not self.read_paused
        if is_alone and len(data) <= self.piece_bytes:
            self._parse_piece(data)
        else:
            self._unparsed += data
            self._parse()

    def _parse(self) -> None:
        """One piece; the next one after others have had their turn in the event loop."""
        if self._unparsed and self._next_piece is None and not self.read_paused:
            piece = bytes(memoryview(self._unparsed)[: self.piece_bytes])
            del self._unparsed[: self.piece_bytes]
            self._parse_piece(piece)
        else:
            self._update_reading()

    def _parse_piece(self, piece: bytes) -> None:
        started_s = time.thread_time()
        super().data_received(piece)
        spent_s = time.thread_time() - started_s
        if spent_s > COSTLY_S:
            self._next_piece = self.loop.call_later(PAUSE_PER_COST * spent_s, self._parse_next)
        elif self._unparsed:
            self._next_piece = self.loop.call_soon(self._parse_next)
        self._update_reading()

    def _update_reading(self) -> None:
        if self._unparsed or self._next_piece is not None:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _parse_next(self) -> None:
        self._next_piece = None
        self._parse()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()  # resumes reading once its queue is empty
        self._parse()
        return message

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:  # else it was refused
            self.scope["extensions"] = {**(self.scope["extensions"] or {}), HANDOVER: self}  # type: ignore[dict-item]

    def prepare_handover(self) -> None:
        """Before the handshake is accepted: what the client sends after it is for another process to read."""
        self._is_handed_over = True

    async def handed_over_fd(self) -> int | None:
        """After the handshake: the descriptor of the connection, once the response has left this process.

        None: the client has left.
        """
        self.stop_keepalive()
        while self.transport.get_write_buffer_size() and not self.transport.is_closing():
            await asyncio.sleep(0)
        if self.transport.is_closing():
            return None
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    async def send(self, message: ASGISendEvent) -> None:
        if self._is_handed_over and message["type"] == "websocket.accept":
            self.read_paused = True
            self.transport.pause_reading()
        await super().send(message)  # of a close, resumes reading: the client's own is to come
        self._parse()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS and not self.close_sent:
            self.conn.fail(CloseCode.POLICY_VIOLATION, f"a message has more than {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        elif not self.close_sent:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # only the newest ping has to be answered
            self._late_pong = b"".join(self.conn.data_to_send())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_later(self.send_timeout_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_abort()
            self.transport.write(self._late_pong)
            self._late_pong = b""

    def keepalive_timeout(self) -> None:
        if self.read_paused or self._next_piece is not None:  # a pong may be among the bytes that are not read
            self.pong_timer = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._abort_later(self.close_timeout)

    def shutdown(self) -> None:
        super().shutdown()
        self._abort_later(SHUTDOWN_S)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._abort_later(self.close_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_abort()
        if self._next_piece is not None:
            self._next_piece.cancel()
        super().connection_lost(exc)

    def _abort_later(self, delay_s: float) -> None:
        self._cancel_abort()
        if not self.disconnected:
            self._aborting = self.loop.call_later(delay_s, self.transport.abort)

    def _cancel_abort(self) -> None:
        if self._aborting is not None:
            self._aborting.cancel()
            self._aborting = None


class AdoptedProtocol(WebSocketProtocol):
    """Of a connection whose handshake another process has done."""

    piece_bytes = ADOPTED_PIECE_BYTES

    def __init__(self, config: Config, server_state: ServerState, app: ASGIApplication) -> None:
        super().__init__(config, server_state, {})
        self.app = app
        self.conn = Protocol(Side.SERVER, state=State.OPEN, max_size=config.ws_max_size)  # type: ignore[assignment]
        self.handshake_initiated = self.handshake_complete = True
        self.scope = {"type": "websocket"}  # type: ignore[typeddict-item]

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.start_keepalive()
        task = self.loop.create_task(self.run_asgi())
        task.add_done_callback(self.on_task_complete)
        self.tasks.add(task)
