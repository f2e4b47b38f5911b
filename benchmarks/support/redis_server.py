"""A Redis server for one test or benchmark: on a free local port, with its data in a given folder."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from choral.errors import EngineError, MissingDependency

MAX_START_S = 20.0


class RedisServer:
    """Syncs every write to an append-only file, so a restart loses nothing; `settings` are extra flags."""

    def __init__(self, folder: Path, *settings: str) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise MissingDependency("this needs redis-server: install it (Debian: apt install redis-server)")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        durability = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        address = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--logfile", "redis.log")
        self._command = [program, *address, *durability, *settings]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + MAX_START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop(signal.SIGKILL)
                raise EngineError(f"redis-server did not start on port {self.port}: see redis.log in its folder")
            time.sleep(0.02)

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal_number)
            process.wait(MAX_START_S)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        """Whether it is ready: a request for a password counts as ready, "loading" does not."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
