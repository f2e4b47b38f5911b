"""The parent's side of decode processes: started on demand, leased to one thread at a time, replaced when they end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError

from choral.audio.prep.decode_protocol import DecodeReply, DecodeRequest, receive_reply, send_request
from choral.errors import EngineError

MAX_FILES_PER_PROCESS = 500  # then a fresh one: memory that a library leaks goes with the process

# The child gets its parent's module search path, which excludes the working directory.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from choral.audio.prep import decode_main; decode_main.main({}, {!r})"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ProcessDied(Exception):
    """A process ended in the middle of a file."""

    def __init__(self, returncode: int) -> None:
        super().__init__(returncode)
        self.returncode = returncode

    @property
    def was_killed(self) -> bool:
        """By a signal from outside (an operator, the OOM killer) rather than by its own crash."""
        return -self.returncode in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

    @property
    def reason(self) -> str:
        return f"exit code {self.returncode}" if self.returncode >= 0 else signal.Signals(-self.returncode).name


class DecodeProcess:
    """Create it in a long-lived thread: Linux kills the process when the thread that started it ends."""

    def __init__(self, function_name: str) -> None:
        self.n_done = 0
        self._channel, child_channel = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START.format(os.getpid(), function_name), json.dumps(sys.path)],
                stdin=child_channel.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        except OSError as error:
            self._channel.close()
            raise EngineError(f"could not start a decode process ({error.strerror}): free some memory") from error
        finally:
            child_channel.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, request: DecodeRequest, audio_fd: int, samples_fd: int, timeout_s: float) -> DecodeReply:
        """After `TimeoutError` or `ProcessDied` the process cannot be used again."""
        self._channel.settimeout(timeout_s)
        try:
            send_request(self._channel, request, (audio_fd, samples_fd))
            reply = receive_reply(self._channel)
        except (EOFError, ConnectionError):
            raise ProcessDied(self._process.wait()) from None
        self.n_done += 1
        return reply

    def kill(self) -> None:
        """Can be called from any thread."""
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()


class ProcessPool:
    def __init__(self, n_processes: int, function_name: str) -> None:
        self._function_name = function_name
        self._n_processes = n_processes
        # None stands for a process that has not been started.
        self._idle: queue.LifoQueue[DecodeProcess | None] = queue.LifoQueue()
        for _ in range(n_processes):
            self._idle.put(None)

    @contextlib.contextmanager
    def lease(self) -> Iterator[DecodeProcess]:
        """Waits for an idle process and holds it; one that raised or has decoded `MAX_FILES_PER_PROCESS` is closed."""
        process = self._idle.get()
        try:
            if process is not None and not process.is_alive:
                process.close()
                process = None
            if process is None:
                process = DecodeProcess(self._function_name)
            yield process
        except CancelledError:
            raise  # the process has not received the request yet
        except BaseException:
            if process is not None:
                process.close()
            process = None
            raise
        finally:
            if process is not None and process.n_done >= MAX_FILES_PER_PROCESS:
                process.close()
                process = None
            self._idle.put(process)

    def close(self) -> None:
        """Waits until all processes are idle, then ends them."""
        for process in [self._idle.get() for _ in range(self._n_processes)]:
            if process is not None:
                process.close()
            self._idle.put(None)
