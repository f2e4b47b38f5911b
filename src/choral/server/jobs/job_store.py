"""The interface of a job store: `SqliteJobStore` runs jobs in this process, `RedisJobStore` hands them to workers.

Records are those of `choral.jobs`, so a job looks the same wherever it runs. Errors are `JobNotFound`, `JobNotReady`,
`JobFailed`, `JobCancelled` and `QueueFull`, with their HTTP status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from choral.audio.prep.inputs import OpenFile
from choral.jobs.record import JobRecord
from choral.types import Priority, Segment, TranscribeOptions, Transcript


@dataclass(frozen=True, kw_only=True)
class NewJob:
    id: str
    audio: OpenFile | str  # a file that is open until it was submitted, or an address
    name: str  # for people
    options: TranscribeOptions
    priority: Priority
    callback: str | None


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment, with the segments that are final; they only ever grow."""

    record: JobRecord
    segments: Sequence[Segment]


class JobStore(Protocol):
    async def open(self) -> None: ...

    async def drain(self, timeout_s: float) -> None:
        """Begins no more jobs, and waits for those that run here."""

    async def close(self) -> None: ...

    async def require_capacity(self) -> None:
        """Raises `QueueFull` where a new job would be refused: known before its audio is read."""

    async def submit(self, job: NewJob) -> JobRecord: ...

    async def show(self, job_id: str) -> JobRecord: ...

    async def newest(self, limit: int, owner: str) -> Sequence[JobRecord]:
        """The jobs whose id begins with the owner's mark, the newest first."""

    async def result(self, job_id: str) -> Transcript:
        """Of a job that succeeded; any other raises the `JobError` that fits its state."""

    async def cancel(self, job_id: str) -> JobRecord: ...

    async def forget(self, job_id: str) -> None:
        """Only one that has ended; others are `JobNotReady`."""

    def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        """The job now, and whenever something changed, until it has ended."""
