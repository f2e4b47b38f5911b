"""The server's side of one session process: its socket, the messages that wait to be sent, and its sessions.

Belongs to the event loop. Nothing here blocks: what the socket does not take at once is sent when it can be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from choral.common.aio import run_in_thread
from choral.server.realtime.session_messages import ProcessStart, encode_process_start
from choral.serving.child_process import start_child
from choral.serving.request_protocol import READ_BYTES, BadMessage, FrameReader, ProcessMessage, frame

if TYPE_CHECKING:
    from choral.server.realtime.session_pool import PooledSession

MODULE = "choral.server.realtime.session_process"
EXIT_TIMEOUT_S = 5.0  # for a process that has closed its connection
AddClient = Callable[[socket.socket], object]  # gets the engine's end of a connection


class SessionChannel:
    def __init__(
        self,
        add_client: AddClient,
        start: ProcessStart,
        on_message: Callable[[SessionChannel, ProcessMessage], None],
        on_exit: Callable[[SessionChannel], None],
    ) -> None:
        """Starts the process. `on_exit`: it has closed the connection, or does not keep to the protocol."""
        self.sessions: dict[int, PooledSession] = {}  # that run in it, or wait for it to be ready
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()  # fails if the process ends before
        self.last_message_s = self._loop.time()
        self._on_message, self._on_exit = on_message, on_exit
        self._reader = FrameReader()
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()
        self._is_writing = False
        self._channel, child_channel = socket.socketpair()
        engine_end, child_engine_end = socket.socketpair()
        with child_channel, child_engine_end, contextlib.ExitStack() as undo:
            undo.callback(self._channel.close)
            undo.callback(engine_end.close)
            arguments, fd = [os.getpid(), child_engine_end.fileno()], child_engine_end.fileno()
            self._process = start_child(MODULE, arguments, child_channel.fileno(), [fd])
            undo.callback(self._process.kill)
            add_client(engine_end)
            undo.pop_all()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._receive)
        self.send(encode_process_start(start))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def connect_engine(self, add_client: AddClient) -> None:
        """To the engine that there is now."""
        engine_end, child_end = socket.socketpair()
        with child_end:
            add_client(engine_end)
            self.send(["engine"], child_end.fileno())

    def send(self, message: ProcessMessage, fd: int | None = None) -> None:
        """The descriptor is duplicated."""
        self._outbox.append((memoryview(frame(message)), [] if fd is None else [os.dup(fd)]))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                n_sent = socket.send_fds(self._channel, [data], fds) if fds else self._channel.send(data)
            except BlockingIOError:
                break
            except OSError:  # the process has ended, which `_receive` reports
                self._clear_outbox()
                break
            _close_all(fds)
            if n_sent < len(data):
                self._outbox[0] = (data[n_sent:], [])
            else:
                self._outbox.popleft()
        if self._outbox and not self._is_writing:
            self._loop.add_writer(self._channel, self._flush)
        elif self._is_writing and not self._outbox:
            self._loop.remove_writer(self._channel)
        self._is_writing = bool(self._outbox)

    def _clear_outbox(self) -> None:
        for _, fds in self._outbox:
            _close_all(fds)
        self._outbox.clear()

    def _receive(self) -> None:
        try:
            data = self._channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.last_message_s = self._loop.time()
        try:
            for message in self._reader.feed(data):
                self._on_message(self, message)
        except (BadMessage, ValueError, TypeError, KeyError, IndexError):
            data = b""
        if not data:
            self._stop_io()
            self._on_exit(self)

    def _stop_io(self) -> None:
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._clear_outbox()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Its exit status; it is killed if it has not ended by itself. Closes the connection."""
        self._channel.close()
        try:
            return await run_in_thread(lambda: self._process.wait(EXIT_TIMEOUT_S), "session-process-exit")
        except subprocess.TimeoutExpired:
            self.kill()
            return await run_in_thread(self._process.wait, "session-process-exit")

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._stop_io()
        self._process.kill()
        self._process.wait()
        self._channel.close()


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
