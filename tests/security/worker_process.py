"""`choral worker` in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class WorkerProcess:
    def __init__(self, redis_url: str, *flags: object, env: dict[str, str] | None = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop
        self.process = subprocess.Popen(
            [sys.executable, "-m", "choral", "worker", "--redis", redis_url, *map(str, flags)],
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )

    @property
    def log(self) -> str:
        return os.pread(self._log.fileno(), 2**26, 0).decode()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextmanager
def running_worker(redis_url: str, *flags: object, env: dict[str, str] | None = None) -> Iterator[WorkerProcess]:
    """A worker that is still running at the end; it must exit with 0 after SIGTERM."""
    worker = WorkerProcess(redis_url, *flags, env=env)
    try:
        yield worker
        assert worker.process.poll() is None, worker.log[-3000:]
        assert worker.stop() == 0
    finally:
        worker.kill()
