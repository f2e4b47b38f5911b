"""`choral serve` in a process of its own, at a free port, with a folder of its own for temporary files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from choral.bench.http_client import status_of
from choral.errors import EngineError

READY_WITHIN_S, END_WITHIN_S = 300.0, 60.0
LOOK_EVERY_S = 0.05


class ServerProcess:
    """Ready when it is made."""

    def __init__(self, flags: Sequence[str], folder: Path, program: str = "choral") -> None:
        self.spool = folder / "spool"
        self.spool.mkdir()
        self._log = (folder / "server.log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, "serve", "--port=0", f"--data={folder / 'jobs'}", "--quiet", *flags],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TMPDIR": str(self.spool)},
        )
        try:
            self.url = self._address()
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise EngineError(f"the server ended with code {self._process.returncode}: {self._last_words()}")

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._close()

    def _close(self) -> None:
        try:
            self._process.wait(END_WITHIN_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()

    def _address(self) -> str:
        assert self._process.stdout is not None
        found = re.search(r" at (http://\S+)", self._process.stdout.readline().decode())
        if found is None:
            raise EngineError(f"the server did not start: {self._last_words()}")
        return found[1]

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while status_of(self.url, "/health/ready") != 200:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise EngineError(f"the server did not become ready: {self._last_words()}")
            time.sleep(LOOK_EVERY_S)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
