"""A connection that another thread can end: when its time is over, or when nobody waits for it any more.

A time limit on each read does not stop a server that sends one byte before each limit; this does, wherever the
request hangs: in the handshake, between two headers or in the body.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Lifeline:
    """Cut once, it stays cut: a connection that comes later ends at once."""

    def __init__(self) -> None:
        self.is_cut = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def hold(self, connection: socket.socket) -> None:
        with self._lock:
            self._socket = connection
            if self.is_cut:
                _shut(connection)

    def cut(self) -> None:
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                _shut(self._socket)

    @contextlib.contextmanager
    def lasting(self, limit_s: float) -> Iterator[None]:
        """Cut after this time, if the block has not ended by then."""
        timer = threading.Timer(limit_s, self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        # An encrypted socket's own `shutdown` would take its state away from the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
