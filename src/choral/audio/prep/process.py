"""The parent's side of a process that decodes: started, given one file at a time, killed when it must be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

from choral.audio.prep.messages import Answer, Order, receive_answer, send_order
from choral.errors import EngineError

# The child finds modules where its parent does, and nowhere else: not in the folder it happens to start in.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from choral.audio.prep import child; child.main({}, {!r})"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ProcessDied(Exception):
    """It ended in the middle of a file."""

    def __init__(self, returncode: int) -> None:
        super().__init__(returncode)
        self.returncode = returncode

    @property
    def was_killed(self) -> bool:
        """By someone, or by a system short of memory, and not by what it did itself."""
        return -self.returncode in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

    @property
    def reason(self) -> str:
        return f"exit code {self.returncode}" if self.returncode >= 0 else signal.Signals(-self.returncode).name


class DecodeProcess:
    """To be made in a thread that lives as long as it is needed: the system kills it when that thread ends."""

    def __init__(self, decode: str) -> None:
        self.n_done = 0
        self._channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START.format(os.getpid(), decode), json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        except OSError as error:
            self._channel.close()
            raise EngineError(
                f"no process could be started to decode in ({error.strerror}): free some memory"
            ) from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, order: Order, audio: int, samples: int, limit_s: float) -> Answer:
        """`TimeoutError` or `ProcessDied`: the process is of no more use."""
        self._channel.settimeout(limit_s)
        try:
            send_order(self._channel, order, (audio, samples))
            answer = receive_answer(self._channel)
        except (EOFError, ConnectionError):
            raise ProcessDied(self._process.wait()) from None
        self.n_done += 1
        return answer

    def kill(self) -> None:
        """From any thread."""
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()
