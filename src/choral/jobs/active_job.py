"""A job that this process is running: its request, its progress, and the events that abort it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from choral.jobs.record import Phase, Timings
from choral.jobs.request import JobRequest
from choral.transcript import Segment

# cancel: requested by a client; lease_lost: another worker has claimed the job; drain: this process is stopping, or
# has no capacity for it; engine_failed: the engine ended while it ran the job.
AbortReason = Literal["cancel", "lease_lost", "drain", "engine_failed"]
T = TypeVar("T")


class JobAborted(Exception):
    """The job is to be abandoned; `ActiveJob.abort_reason` says why."""


@dataclass(eq=False)
class ActiveJob:
    """Modified only in the event loop."""

    request: JobRequest
    audio: bytes  # of an inline job; dropped once it is prepared
    attempts: int  # including this one
    queued_s: float
    crashes: int = 0
    entry_id: str = ""  # in the stream of Redis
    phase: Phase = "prep"
    done_s: float = 0.0
    duration_s: float | None = None
    fetch_s: float | None = None
    decode_s: float | None = None
    engine_s: float | None = None
    segments: list[Segment] = field(default_factory=list)  # the final ones so far, where they are wanted
    abort_reason: AbortReason | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def timings(self) -> Timings:
        return Timings(self.queued_s, self.fetch_s, self.decode_s, self.engine_s)

    def abort(self, reason: AbortReason) -> None:
        """The first reason is kept."""
        if self.abort_reason is None:
            self.abort_reason = reason
            self.aborted.set()

    async def unless_aborted(self, work: Awaitable[T]) -> T:
        """Await `work`; on abort, cancel it and raise `JobAborted`."""
        task = asyncio.ensure_future(work)
        aborted = asyncio.ensure_future(self.aborted.wait())
        try:
            await asyncio.wait({task, aborted}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise JobAborted
        finally:
            task.cancel()
            aborted.cancel()
