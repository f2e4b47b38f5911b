"""Threads that decode audio take turns, because together they are slower than one after another.

A decoder releases the GIL for each packet of some milliseconds, and with several of them the process spends its time
on handing the GIL around. The turns are fair and short, so a small file does not wait for a large one. They are advice,
not a lock: a thread that has waited for `PATIENCE_S` decodes anyway, since the one before it may be stuck in a read.
"""

from __future__ import annotations

import threading
import time
from collections import deque

TURN_S = 0.05
PATIENCE_S = 1.0


class DecodeTurns:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[DecodeTurn] = deque()  # the first one decodes

    def join(self) -> DecodeTurn:
        """Wait for a turn. The caller leaves when it has decoded all."""
        turn = DecodeTurn(self)
        with self._lock:
            self._append(turn)
        turn.wait()
        return turn

    def requeue(self, turn: DecodeTurn) -> bool:
        """Let the others go first; false if there are none."""
        with self._lock:
            if len(self._queue) == 1:
                return False
            if self._queue[0] is turn:
                self._remove(turn)
                turn.has_come.clear()
                self._append(turn)
            return True

    def leave(self, turn: DecodeTurn) -> None:
        with self._lock:
            self._remove(turn)

    def _append(self, turn: DecodeTurn) -> None:
        self._queue.append(turn)
        self._queue[0].has_come.set()

    def _remove(self, turn: DecodeTurn) -> None:
        self._queue.remove(turn)
        if self._queue:
            self._queue[0].has_come.set()


class DecodeTurn:
    """One thread's place in the queue."""

    def __init__(self, turns: DecodeTurns) -> None:
        self._turns = turns
        self._end_s = 0.0
        self.has_come = threading.Event()

    def __enter__(self) -> DecodeTurn:
        return self

    def __exit__(self, *_: object) -> None:
        self._turns.leave(self)

    def pause(self) -> None:
        """Between two pieces: if the turn is over, wait for the next one."""
        if time.monotonic() > self._end_s and self._turns.requeue(self):
            self.wait()

    def wait(self) -> None:
        self.has_come.wait(PATIENCE_S)
        self._end_s = time.monotonic() + TURN_S


PROCESS_TURNS = DecodeTurns()  # the GIL is the process's
