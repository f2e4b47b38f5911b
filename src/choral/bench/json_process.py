"""A helper process that takes messages as lines of JSON and replies to each with a line; this module has both sides.

What libraries print in the child goes to standard error. A failure there ends the child; the parent then raises
`ProcessFailed` with the last line of its standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from choral.errors import EngineError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_CLOSE_S = 10


class ProcessFailed(EngineError):
    """The child ended; the text is the last line of its standard error."""


class JsonProcess:
    """Runs `python -m module` and waits until it has taken the first message."""

    def __init__(self, module: str, first_message: Any, environment: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        )
        try:
            self.request(first_message)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, message: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        if not line:
            raise ProcessFailed(self._last_line())
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(MAX_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_line(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        return lines[-1] if lines else f"it ended with code {code}"


def serve_messages(open_handler: Callable[[Any], Callable[[Any], DataclassInstance]]) -> None:
    """The child's side: `open_handler` takes the first message; what it returns handles every message after it."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    handle = open_handler(json.loads(sys.stdin.readline()))
    print("null", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(handle(json.loads(line)))), file=replies, flush=True)
