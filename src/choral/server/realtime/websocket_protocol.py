"""uvicorn's WebSocket protocol with limits on what a client can hold or occupy.

- A client that does not read is disconnected after `send_timeout_s`: a send would wait for it forever, and so would a
  close, because a transport closes only when its buffer is empty.
- Frames are parsed in the event loop. Reads are small, and a connection whose frames are costly, such as a flood of
  empty ones, is not read for a while, so it takes a small share of the event loop.
- Pongs do not fill the write buffer of a client that does not read.
"""

from __future__ import annotations

import asyncio
import socket
import time
from asyncio.transports import BaseTransport
from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent

KERNEL_BUFFER_BYTES = 128 * 2**10  # the kernel would hold megabytes for a client that does not read
READ_BYTES = 4 * 2**10  # 700 empty frames
COSTLY_S = 0.002  # CPU time of one read: audio takes a tenth of a millisecond
PAUSE_PER_COST = 20.0  # so such a connection takes at most a twentieth of the event loop
MAX_FRAGMENTS = 4096  # of a message: its size does not limit empty ones
SHUTDOWN_S = 1.0  # to send what is buffered when the server stops


class WebSocketProtocol(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    send_timeout_s = 20.0
    _aborting: asyncio.TimerHandle | None = None
    _throttling: asyncio.TimerHandle | None = None
    _late_pong = b""

    def connection_made(self, transport: BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        self._read_buffer = bytearray(READ_BYTES)
        super().connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self._read_buffer)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        started_s = time.thread_time()
        super().data_received(data)
        spent_s = time.thread_time() - started_s
        if spent_s > COSTLY_S and self._throttling is None:
            self.transport.pause_reading()
            self._throttling = self.loop.call_later(PAUSE_PER_COST * spent_s, self._end_throttling)

    def _end_throttling(self) -> None:
        self._throttling = None
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()  # resumes reading once its queue is empty
        if self._throttling is not None:
            self.transport.pause_reading()
        return message

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
        if self.read_paused or self._throttling is not None:  # a pong may be among the bytes that are not read
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
        if self._throttling is not None:
            self._throttling.cancel()
        super().connection_lost(exc)

    def _abort_later(self, delay_s: float) -> None:
        self._cancel_abort()
        if not self.disconnected:
            self._aborting = self.loop.call_later(delay_s, self.transport.abort)

    def _cancel_abort(self) -> None:
        if self._aborting is not None:
            self._aborting.cancel()
            self._aborting = None
