"""A job that a worker has in hand: what is wanted, how far it is, and the way to stop it wherever it is."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Literal

from choral.jobs.record import Phase, Timings
from choral.jobs.request import JobRequest

# cancel: somebody asked for it; lost: another worker has it now; drain: this worker ends.
Reason = Literal["cancel", "lost", "drain"]


class JobAborted(Exception):
    """The job is to be given up; `ActiveJob.reason` says why."""


@dataclass(eq=False)
class ActiveJob:
    """Changed in the worker's event loop only; `done_s` by the thread that transcribes."""

    request: JobRequest
    audio: bytes  # of an inline job, given up once it is prepared
    attempts: int  # this one included
    queued_s: float
    crashes: int = 0
    phase: Phase = "prep"
    done_s: float = 0.0
    duration_s: float | None = None
    fetch_s: float | None = None
    decode_s: float | None = None
    engine_s: float | None = None
    reason: Reason | None = None
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    stop_reading: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def timings(self) -> Timings:
        return Timings(self.queued_s, self.fetch_s, self.decode_s, self.engine_s)

    def give_up(self, reason: Reason) -> None:
        """The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.stop_reading.set()
            self.unwanted.set()
