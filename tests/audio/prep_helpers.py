"""Helpers for tests of the prep pool."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

from choral.audio.prep.pool import Backlog
from choral.audio.recording import Recording

EMPTY = Backlog(waiting=0, fetching=0, fetched=0, decoding=0, memory_bytes=0)


def wait_until(condition: Callable[[], bool], limit_s: float = 10) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def children() -> set[int]:
    """Live child processes of this process."""
    found = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="], capture_output=True, text=True)
    lines = [line.split(None, 1) for line in found.stdout.splitlines()]
    return {int(pid) for pid, command in lines if not command.startswith("ps") and "defunct" not in command}


def samples_of(recording: Recording) -> bytes:
    return b"".join(piece.tobytes() for piece in recording.pieces(100_000))
