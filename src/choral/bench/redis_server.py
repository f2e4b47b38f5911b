"""A Redis of our own for as long as it is needed: on a free port of this machine, with its data in a given folder."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from choral.errors import EngineError, MissingDependency

START_S = 20.0


class RedisServer:
    """Keeps every write (AOF, synced always), so that a restart loses nothing. Further settings go to its command."""

    def __init__(self, folder: Path, *settings: str) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise MissingDependency("this needs redis-server: install it (Debian: apt install redis-server)")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--logfile", "redis.log")
        self._command = [program, *place, *durable, *settings]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop(signal.SIGKILL)
                raise EngineError(f"redis-server did not start at port {self.port}: see redis.log in its folder")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(START_S)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        """An answer that asks for a password is one too; one that says it is loading is not."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
