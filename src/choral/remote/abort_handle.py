"""Aborts a request from another thread: on a deadline, or when its result is no longer needed.

A timeout on each read does not stop a server that sends one byte before every timeout. Shutting down the socket does,
wherever the request hangs: in the TLS handshake, between two headers or in the body.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class AbortHandle:
    """Stays aborted: a connection that is attached later is shut down at once."""

    def __init__(self) -> None:
        self.is_aborted = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def attach(self, connection: socket.socket) -> None:
        with self._lock:
            self._socket = connection
            if self.is_aborted:
                _shutdown(connection)

    def abort(self) -> None:
        with self._lock:
            self.is_aborted = True
            if self._socket is not None:
                _shutdown(self._socket)

    @contextlib.contextmanager
    def abort_after(self, timeout_s: float) -> Iterator[None]:
        """Abort if the block takes longer than this."""
        timer = threading.Timer(timeout_s, self.abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shutdown(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # already closed
        # SSLSocket.shutdown would drop the TLS state that the reading thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
