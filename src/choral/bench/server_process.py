"""`choral serve` in its own process, on a free port, with its own folder for temporary files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from choral.bench.http_client import get_status
from choral.errors import EngineError

MAX_START_S, MAX_STOP_S = 300.0, 60.0
MAX_LOG_LINES = 30
POLL_S = 0.05


class ServerProcess:
    """Ready for requests once constructed; `program` is the module that has the command line."""

    def __init__(self, flags: Sequence[str], folder: Path, program: str = "choral") -> None:
        self.temp_folder = folder / "temp"
        self.temp_folder.mkdir()
        self._log = (folder / "server.log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, "serve", "--port=0", f"--data={folder / 'jobs'}", "--quiet", *flags],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TMPDIR": str(self.temp_folder)},
        )
        try:
            self.url = self._read_url()
            self._wait_ready()
        except BaseException:
            self._process.kill()
            self._close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise EngineError(f"the server exited with code {self._process.returncode}: {self._log_end()}")

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._close()

    def _close(self) -> None:
        try:
            self._process.wait(MAX_STOP_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        match = re.search(r" at (http://\S+)", self._process.stdout.readline().decode())
        if match is None:
            raise EngineError(f"the server did not start: {self._log_end()}")
        return match[1]

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + MAX_START_S
        while get_status(self.url, "/health/ready") != 200:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise EngineError(f"the server did not become ready: {self._log_end()}")
            time.sleep(POLL_S)

    def _log_end(self) -> str:
        """Enough lines for a traceback."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-MAX_LOG_LINES:]) or "its log is empty"
