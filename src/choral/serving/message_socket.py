"""Framed messages over a connected stream socket that never blocks: both sides of the engine's boundary use it.

A frame is the length of its body, its kind (one byte) and the body. One thread receives; sending needs a lock if
several threads send. What the socket does not take at once stays in the outbox until the next `flush`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from itertools import islice

from choral.errors import EngineError

HEAD = struct.Struct("<IB")
READ_BYTES = 128 * 1024
MAX_BUFFERS = 64  # of one `sendmsg`; the system's limit is 1,024

Body = bytes | memoryview


class ProtocolError(EngineError):
    """The other side sent something that its code does not send: it is broken, or taken over."""


class MessageSocket:
    def __init__(self, connection: socket.socket, max_body_bytes: int = 2**32 - 1) -> None:
        connection.setblocking(False)
        self._socket, self._max_body_bytes = connection, max_body_bytes
        self._buffer = self._usual_buffer = bytearray(READ_BYTES)
        self._n_filled = 0
        self._outbox: deque[Body] = deque()
        self.n_unsent_bytes = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[tuple[int, Body]]:
        """Kind and body of the messages that have arrived; `EOFError` if the other side has closed."""
        try:
            n_bytes = self._socket.recv_into(memoryview(self._buffer)[self._n_filled :])
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise EOFError from error
        if not n_bytes:
            raise EOFError
        self._n_filled += n_bytes
        return self._take_large() if self._buffer is not self._usual_buffer else self._take_all()

    def _take_large(self) -> list[tuple[int, Body]]:
        """The message for which a buffer of its own was made, once that is full."""
        if self._n_filled < len(self._buffer):
            return []
        _, kind = HEAD.unpack_from(self._buffer)
        body = memoryview(self._buffer)[HEAD.size :]
        self._buffer, self._n_filled = self._usual_buffer, 0
        return [(kind, body)]

    def _take_all(self) -> list[tuple[int, Body]]:
        messages: list[tuple[int, Body]] = []
        view, start = memoryview(self._buffer), 0
        while self._n_filled - start >= HEAD.size:
            n_body, kind = HEAD.unpack_from(view, start)
            if n_body > self._max_body_bytes:
                raise ProtocolError(f"a message of {n_body:,} bytes")
            stop = start + HEAD.size + n_body
            if stop > self._n_filled:
                if HEAD.size + n_body > READ_BYTES:
                    self._buffer = bytearray(HEAD.size + n_body)
                break
            messages.append((kind, bytes(view[start + HEAD.size : stop])))
            start = stop
        rest = bytes(view[start : self._n_filled])
        self._buffer[: len(rest)] = rest
        self._n_filled = len(rest)
        return messages

    def send(self, kind: int, *parts: Body) -> None:
        """Append a message to the outbox. Views are sent as they are; their memory must not change until then."""
        n_body = sum(map(len, parts))
        self._outbox.append(HEAD.pack(n_body, kind))
        self._outbox.extend(parts)
        self.n_unsent_bytes += HEAD.size + n_body

    def flush(self) -> None:
        """Send as much as the socket takes. A broken connection is left to `receive` to notice."""
        while self._outbox:
            try:
                n_sent = self._socket.sendmsg(list(islice(self._outbox, MAX_BUFFERS)))
            except BlockingIOError:
                return
            except ConnectionError:
                self._outbox.clear()
                self.n_unsent_bytes = 0
                return
            self.n_unsent_bytes -= n_sent
            while n_sent and n_sent >= len(self._outbox[0]):
                n_sent -= len(self._outbox.popleft())
            if n_sent:
                self._outbox[0] = memoryview(self._outbox[0])[n_sent:]

    def close(self) -> None:
        self._socket.close()
