"""The interface of a job store: `SqliteJobStore` runs jobs in this process, `RedisJobStore` hands them to workers.

Records are those of `choral.jobs`, so a job looks the same wherever it runs. Errors are `JobNotFound`, `JobNotReady`,
`JobFailed`, `JobCancelled` and `QueueFull`, with their HTTP status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from choral.jobs.record import JobRecord
from choral.options import Priority, TranscribeOptions
from choral.server.settings import JobSettings
from choral.serving.input_sources import OpenFile
from choral.transcript import Segment, Transcript

if TYPE_CHECKING:
    from choral.server.jobs.job_billing import JobBilling
    from choral.server.service import Service


@dataclass(frozen=True, kw_only=True)
class NewJob:
    id: str
    audio: OpenFile | str  # a file that stays open until the job is submitted, or a URL
    name: str  # for display
    options: TranscribeOptions
    priority: Priority
    callback: str | None
    model: str | None = None  # one of the server's; None: the default one
    align: str | None = None  # a text to be aligned with the audio


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment, with its final segments, whose number only grows."""

    record: JobRecord
    segments: Sequence[Segment]


class JobStore(Protocol):
    async def open(self) -> None: ...

    async def drain(self, timeout_s: float) -> None:
        """Start no more jobs, and wait for those that run here."""

    async def close(self) -> None: ...

    async def require_capacity(self) -> None:
        """Raise `QueueFull` if a new job would be refused: checked before its audio is read."""

    async def submit(self, job: NewJob) -> JobRecord: ...

    async def show(self, job_id: str) -> JobRecord: ...

    async def newest(self, limit: int, prefix: str) -> Sequence[JobRecord]:
        """The jobs whose id begins with the prefix, newest first."""

    async def result(self, job_id: str) -> Transcript:
        """The result of a job that succeeded; any other raises the `JobError` of its state."""

    async def cancel(self, job_id: str) -> JobRecord: ...

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended; any other is `JobNotReady`."""

    def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        """The job now and after every change, until it has ended."""


@asynccontextmanager
async def open_job_store(
    service: Service, settings: JobSettings, folder: Path, billing: JobBilling, webhook_secret: str = ""
) -> AsyncIterator[JobStore]:
    """The store that the settings choose: Redis if they name one, this process otherwise."""
    from choral.server.jobs.sqlite_store import SqliteJobStore

    if settings.redis:
        from choral.server.jobs.redis_store import RedisJobStore

        store: JobStore = RedisJobStore(settings, billing, service.loops)
    else:
        store = SqliteJobStore(service, settings, folder, billing, webhook_secret)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
