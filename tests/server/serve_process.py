"""`choral serve` in a separate process, on a free port, with a real model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import httpx
import openai

READY_WITHIN_S = 120.0
LIMIT_BYTES, STALL_S = 3_000_000, 2.0  # of the server that most tests share


EXACT = ("--compute-type", "float32")  # texts, times and scores are compared with those of `Model` in it


class ServeProcess:
    def __init__(self, *flags: object, env: dict[str, str] | None = None, program: str = "choral") -> None:
        """`program` is the module that has the command line."""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, "serve", "--port", "0", *EXACT, *map(str, flags)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(env or {})},
        )
        self.greeting = self._read_greeting()
        found = re.search(r"at (http://\S+)", self.greeting)
        assert found, self.greeting + self.log
        self.url = found[1]

    def _read_greeting(self) -> str:
        assert self.process.stdout is not None
        return "".join(self.process.stdout.readline().decode() for _ in range(5))

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while httpx.get(f"{self.url}/health/ready").status_code != 200:
            assert time.monotonic() < deadline_s, self.log
            time.sleep(0.05)

    def client(self, api_key: str = "none", **settings: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, **settings)  # type: ignore[arg-type]

    def metric(self, name: str) -> float:
        """The sum of all samples of this name."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}(\{{|\s)", line))

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


@contextmanager
def running(*flags: object, env: dict[str, str] | None = None, program: str = "choral") -> Iterator[ServeProcess]:
    """A server that is ready; it must exit with 0 after SIGTERM."""
    server = ServeProcess(*flags, env=env, program=program)
    try:
        server.wait_ready()
        yield server
        assert server.stop() == 0
    finally:
        server.kill()
