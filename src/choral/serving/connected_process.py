"""The parent's side of one request process: its socket, the messages that wait to be sent, and its requests.

Belongs to the pool's thread. Nothing here blocks: what the socket does not take at once is sent when it can be written.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator

from choral.serving.child_process import start_child
from choral.serving.pooled_request import PooledRequest
from choral.serving.request_protocol import (
    READ_BYTES,
    BadMessage,
    FrameReader,
    ProcessConfig,
    ProcessMessage,
    encode_config,
    frame,
)

EXIT_TIMEOUT_S = 5.0  # for a process that has closed its connection


class ConnectedProcess:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        add_client: Callable[[socket.socket], object],
        config: ProcessConfig,
        decode_name: str,
    ) -> None:
        """`selector` watches its socket; `add_client` gets the engine's end of a connection to the process."""
        self.requests: dict[int, PooledRequest] = {}  # that run in it, by number
        self.n_started = 0
        self.is_ready = False
        self.is_retiring = False  # gets no more requests, and ends when it has none
        self.is_for_suspects = False  # one request at a time
        self.last_message_s = time.monotonic()
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()
        self._buffer, self._reader = bytearray(READ_BYTES), FrameReader()
        self._channel, child_channel = socket.socketpair()
        engine_end, child_engine_end = socket.socketpair()
        self._channel.setblocking(False)
        try:
            arguments = [os.getpid(), child_engine_end.fileno(), decode_name]
            self._process = start_child(
                "choral.serving.request_process", arguments, child_channel.fileno(), [child_engine_end.fileno()]
            )
        except BaseException:
            self._channel.close()
            engine_end.close()
            raise
        finally:
            child_channel.close()
            child_engine_end.close()
        try:
            add_client(engine_end)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._channel.close()
            raise
        self._selector, self._interest = selector, selectors.EVENT_READ
        selector.register(self._channel, self._interest, self)
        self.send(encode_config(config))

    @property
    def pid(self) -> int:
        return self._process.pid

    def n_running(self, client_waits: bool) -> int:
        """Requests of one lane, without downloads."""
        return sum(
            request.client_waits == client_waits and request.phase != "fetching" for request in self.requests.values()
        )

    def start(self, request: PooledRequest) -> None:
        self.requests[request.id] = request
        self.n_started += 1
        self.send(request.start_message(), request.shared.fd)

    def cancel(self, request: PooledRequest) -> None:
        self.send(frame(["cancel", request.id]))

    def ask_alive(self) -> None:
        self.send(frame(["alive"]))

    def send(self, data: bytes, fd: int | None = None) -> None:
        """`fd` must stay open until the process has answered."""
        self._outbox.append((memoryview(data), [] if fd is None else [fd]))
        self.flush()

    def flush(self) -> None:
        self._send_outbox()
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        if interest != self._interest:
            self._interest = interest
            self._selector.modify(self._channel, interest, self)

    def _send_outbox(self) -> None:
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                n_sent = socket.send_fds(self._channel, [data], fds) if fds else self._channel.send(data)
            except BlockingIOError:
                return
            except OSError:  # the process has ended, which `receive` reports
                self._outbox.clear()
                return
            if n_sent < len(data):
                self._outbox[0] = (data[n_sent:], [])
            else:
                self._outbox.popleft()

    def receive(self) -> Iterator[ProcessMessage]:
        """The messages that have arrived; raises `EOFError` when the process has ended, or must."""
        try:
            n_bytes = self._channel.recv_into(self._buffer)  # a new buffer for each would cost more than reading
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        if not n_bytes:
            raise EOFError
        self.last_message_s = time.monotonic()
        try:
            yield from self._reader.feed(memoryview(self._buffer)[:n_bytes])
        except BadMessage as error:
            raise EOFError from error

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """Its exit status; a process that closed its connection but does not end is killed."""
        try:
            return self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def disconnect(self) -> None:
        """Close the connection, which ends the process; a second call has no effect."""
        if self._channel.fileno() >= 0:
            self._selector.unregister(self._channel)
            self._channel.close()

    def end(self) -> None:
        """Kill it, and wait until its memory is free."""
        self._process.kill()
        self._process.wait()
