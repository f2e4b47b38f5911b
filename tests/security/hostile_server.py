"""Servers that answer every connection in a hostile way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
TRICKLE_EVERY_S = 0.5


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that reads a request and answers it this way, each on a thread of its own.

    `answer` must return or fail when the block ends.
    """
    threads: list[threading.Thread] = []

    def handle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            connection.recv(65_536)
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                thread = threading.Thread(target=handle, args=(listener.accept()[0],))
                threads.append(thread)
                thread.start()

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


@contextmanager
def tar_pit(start: bytes = OK) -> Iterator[str]:
    """The address of a server that answers with `start`, and then with one byte every half second, without end."""
    is_over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(start)
        while not is_over.wait(TRICKLE_EVERY_S):
            connection.sendall(b"a")

    with raw_server(trickle) as address:
        try:
            yield address
        finally:
            is_over.set()
