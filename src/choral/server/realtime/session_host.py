"""What the live sessions of a process share: the engine, the names of the model, limits, metrics and handler slots.

The process is the server's or, on a machine whose engine is faster than one Python process, a session process.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from choral.common.processor import n_usable_cores
from choral.longform.transcriber import Transcriber
from choral.server.model_names import ModelNames
from choral.server.settings import ServerSettings

MIN_HANDLERS, MAX_HANDLERS = 2, 8


@dataclass(frozen=True)
class SessionLimits:
    """Of one session; see the settings with these names."""

    message_bytes: int
    buffer_s: float
    idle_s: float
    send_s: float

    @classmethod
    def of(cls, settings: ServerSettings) -> SessionLimits:
        return cls(
            message_bytes=settings.realtime_message_bytes,
            buffer_s=settings.realtime_buffer_s,
            idle_s=settings.realtime_idle_s,
            send_s=settings.realtime_send_s,
        )

    @property
    def frame_bytes(self) -> int:
        """The largest message that is read: one between the two limits is answered with an error event."""
        return 2 * self.message_bytes


class SessionMetrics(Protocol):
    """Called on any thread."""

    def add_audio(self, duration_s: float) -> None: ...

    def observe_text(self, delay_s: float) -> None: ...

    def observe_completed(self, delay_s: float) -> None: ...


class FairSemaphore:
    """Passes its slots on in the order of arrival, so a busy thread cannot take its slot back before others."""

    def __init__(self, n_slots: int) -> None:
        self._n_free = n_slots
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._n_free:
                self._n_free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # released by the thread that passes its slot on

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._n_free += 1


def handler_slots(n_processes: int = 1) -> FairSemaphore:
    """Few sessions handle a message at a time: many busy threads would keep the event loop from the GIL."""
    return FairSemaphore(max(MIN_HANDLERS, min(MAX_HANDLERS, n_usable_cores() // n_processes)))


@dataclass(frozen=True)
class SessionHost:
    transcriber: Transcriber
    names: ModelNames
    limits: SessionLimits
    metrics: SessionMetrics
    slots: FairSemaphore  # in which sessions handle their messages
