"""The processes that decode: started when first needed, lent to one thread at a time, replaced when they end."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent.futures import CancelledError

from choral.audio.prep.process import DecodeProcess

FILES_EACH = 500  # then a fresh one: what a library leaks goes with the process


class Crew:
    def __init__(self, n_processes: int, decode: str) -> None:
        self._decode = decode
        # None stands for a process that is yet to be started.
        self._idle: queue.LifoQueue[DecodeProcess | None] = queue.LifoQueue()
        for _ in range(n_processes):
            self._idle.put(None)
        self._n_processes = n_processes

    @contextlib.contextmanager
    def one(self) -> Iterator[DecodeProcess]:
        """A process that nobody else has; waits for one."""
        process = self._idle.get()
        try:
            if process is None or not process.is_alive:
                process = self._started(process)
            yield process
        except CancelledError:
            raise  # before it had anything to do
        except BaseException:
            if process is not None:
                process.close()
            process = None
            raise
        finally:
            if process is not None and process.n_done >= FILES_EACH:
                process.close()
                process = None
            self._idle.put(process)

    def close(self) -> None:
        """All must be back by now."""
        for process in [self._idle.get() for _ in range(self._n_processes)]:
            if process is not None:
                process.close()
            self._idle.put(None)

    def _started(self, dead: DecodeProcess | None) -> DecodeProcess:
        if dead is not None:
            dead.close()
        return DecodeProcess(self._decode)
