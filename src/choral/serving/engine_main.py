"""Main of an engine's process: loads a model, and serves it to the clients whose sockets its parent sends.

It dies with its parent, and ignores the signals that stop a service: the parent decides what is finished, and closes
the connection to end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from choral.common.logs import LogFormat, configure_logging
from choral.config import EngineSettings
from choral.engine.any_engine import AnyEngine
from choral.errors import ChoralError
from choral.longform.load_transcriber import OnDownload
from choral.longform.transcriber import Transcriber
from choral.serving.child_process import harden
from choral.serving.engine_server import EngineServer

MAX_PACKET_BYTES = 2**16
PROGRESS_INTERVAL_S = 0.1

LoadFunction = Callable[[str, EngineSettings, OnDownload], Transcriber]


def main(parent_pid: int, load_name: str, model: str, settings: dict[str, Any], log_format: LogFormat | None) -> None:
    """Standard input is the connection to the parent."""
    harden(parent_pid, is_expendable=False)
    if log_format is not None:
        configure_logging(log_format)
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        try:
            load: LoadFunction = pkgutil.resolve_name(load_name)
            transcriber = load(model, EngineSettings(**settings), DownloadReporter(control))
        except ChoralError as error:
            send_packet(control, "failed", type(error).__name__, str(error))
            return
        with contextlib.closing(transcriber.engine), contextlib.closing(EngineServer(transcriber)) as server:
            with contextlib.suppress(BrokenPipeError):  # the parent is gone: `serve` ends
                send_packet(control, "ready")
            serve(control, server)


def serve(control: socket.socket, server: EngineServer) -> None:
    """Until the parent closes the connection."""
    while (received := receive_packet(control)) is not None:
        match received:
            case ["client"], [fd]:
                server.add_client(socket.socket(fileno=fd))
            case ["drain", number, timeout_s], []:
                threading.Thread(target=drain, args=(control, server.engine, number, timeout_s), daemon=True).start()
            case other:
                raise TypeError(f"unknown packet: {other!r}")


def drain(control: socket.socket, engine: AnyEngine, number: int, timeout_s: float | None) -> None:
    is_drained = engine.drain(timeout_s)
    with contextlib.suppress(OSError):  # the parent does not wait any more
        send_packet(control, "drained", number, is_drained)


class DownloadReporter:
    """Reports a download's progress to the parent, ten times a second."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._next_s = control, 0.0

    def __call__(self, n_done: int, n_total: int | None) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s or n_done == n_total:
            self._next_s = now_s + PROGRESS_INTERVAL_S
            send_packet(self._control, "downloading", n_done, n_total)


def send_packet(control: socket.socket, *message: Any, fds: tuple[int, ...] = ()) -> None:
    """A list as JSON over a socket that keeps the borders of packets."""
    socket.send_fds(control, [json.dumps(message).encode()], fds)


def receive_packet(control: socket.socket) -> tuple[list[Any], list[int]] | None:
    """The message and its descriptors; None if the other side has closed."""
    try:
        packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
    except ConnectionError:
        return None
    return (json.loads(packet), fds) if packet else None
