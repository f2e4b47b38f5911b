"""The `QueueStore` of a server that runs its jobs itself: `JobTable` for the event loop.

Every call runs on one thread, one after the other, each as a whole. The table belongs to this process, so jobs need no
leases, and those of webhooks are kept in memory: after a restart, a webhook that was being sent is due again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from choral.errors import ChoralError, JobNotFound, StorageError
from choral.jobs.active_job import ActiveJob
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_states import State, error_fields
from choral.jobs.queue_store import Delivery, DueWebhook
from choral.jobs.record import JobRecord, transcript_to_json
from choral.server.jobs.job_table import JobTable
from choral.serving.input_sources import OpenFile
from choral.storage import storage_errors
from choral.transcript import Transcript

log = logging.getLogger("choral.server")
Result = TypeVar("Result")
RETRY_PAUSE_S = 2.0
MAX_SCANNED = 10_000  # due webhooks that are searched for those that may be sent


@dataclass(eq=False, kw_only=True)
class LocalJob(ActiveJob):
    taken: JobRecord  # as it was when the job started

    @classmethod
    def of(cls, record: JobRecord) -> LocalJob:
        queued_s = (record.started_at or 0.0) - record.queued_at
        return cls(record.request, b"", record.attempts, queued_s, record.crashes, taken=record)

    @property
    def record(self) -> JobRecord:
        """As it is now."""
        return dataclasses.replace(
            self.taken, phase=self.phase, done_s=self.done_s, duration_s=self.duration_s, timings=self.timings
        )


class LocalQueue:
    def __init__(self, folder: Path) -> None:
        self.table = JobTable(folder)
        self._thread = ThreadPoolExecutor(1, "choral-jobs-disk")
        self._leased_until_s: dict[str, float] = {}  # webhooks by job, in monotonic time

    async def run(self, call: Callable[[JobTable], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, self.table)

    async def call(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """For actions that no client waits for: repeated until the disk works."""
        while True:
            try:
                return await action()
            except StorageError as error:
                log.error("%s; trying again in %g s", error, RETRY_PAUSE_S)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def retry(self, call: Callable[[JobTable], Result]) -> Result:
        return await self.call(lambda: self.run(call))

    async def close(self) -> None:
        """After all calls that were started."""
        await self.run(JobTable.close)
        self._thread.shutdown()

    # --- jobs ---

    async def store_audio(self, file: IO[bytes], path: Path) -> None:
        """Copy the audio; it is on the disk before this returns."""
        await asyncio.to_thread(_copy, file, path)

    async def open_audio(self, job: ActiveJob) -> OpenFile | str:
        audio = job.request.audio
        if audio.kind == "url":
            return audio.location
        with storage_errors(Path(audio.location)):
            return OpenFile(audio.name, open(audio.location, "rb"))

    async def take(self, fetch_slots: FetchSlots, *, batch_first: bool) -> LocalJob | None:
        """Start the next job that has a place; those without one stay queued."""
        with_urls, skip_hosts = not fetch_slots.is_full, fetch_slots.full_hosts
        record = await self.retry(
            lambda table: table.take(batch_first=batch_first, with_urls=with_urls, skip_hosts=skip_hosts)
        )
        if record is None:
            return None
        job = LocalJob.of(record)
        fetch_slots.take(job)
        return job

    async def succeed(self, job: ActiveJob, transcript: Transcript) -> str:
        def write(table: JobTable) -> str:
            result = transcript_to_json(transcript)
            return _end(table, job, "succeeded", result, duration_s=transcript.duration, error=None, error_kind=None)

        return await self.run(write)

    async def fail(self, job: ActiveJob, state: State, error: ChoralError | None, delay_s: float = 0.0) -> str:
        text, kind = (None, None) if error is None else error_fields(error)

        def write(table: JobTable) -> str:
            if state == "waiting":
                table.reschedule(job.id, time.time() + delay_s, text, kind)
                return "stored"
            return _end(table, job, state, None, duration_s=job.duration_s, error=text, error_kind=kind)

        return await self.run(write)

    async def requeue(self, job: ActiveJob, max_crashes: int = 0) -> str:
        return await self.run(lambda table: table.requeue(job.id, max_crashes))

    # --- webhooks ---

    async def lease_webhooks(
        self, n_max: int, lease_s: float, may_send: Callable[[DueWebhook], bool]
    ) -> list[DueWebhook]:
        now_s = time.monotonic()
        self._leased_until_s = {job_id: end_s for job_id, end_s in self._leased_until_s.items() if end_s > now_s}
        leased: list[DueWebhook] = []
        for job_id, callback in await self.run(lambda table: table.due_webhooks(MAX_SCANNED)):
            webhook = DueWebhook(job_id, "1", callback)
            if len(leased) < n_max and job_id not in self._leased_until_s and may_send(webhook):
                leased.append(webhook)
                self._leased_until_s[job_id] = now_s + lease_s
        return leased

    async def ended_job(self, job_id: str) -> tuple[JobRecord, bytes | None] | None:
        def read(table: JobTable) -> tuple[JobRecord, str | None]:
            return table.show(job_id), table.result(job_id)

        try:
            record, result = await self.run(read)
        except JobNotFound:
            return None
        return (record, None if result is None else result.encode()) if record.has_ended else None

    async def record_webhook(self, webhook: DueWebhook, delivery: Delivery) -> str:
        stored = await self.run(lambda table: table.record_webhook(webhook.job_id, delivery))
        self._leased_until_s.pop(webhook.job_id, None)
        return stored


def _end(table: JobTable, job: ActiveJob, state: State, result: str | None, **fields: object) -> str:
    """The outcome is stored before the audio is deleted: after a crash in between, the next start deletes it."""
    ended = dataclasses.replace(
        table.show(job.id),
        state=state,
        ended_at=time.time(),
        timings=job.timings,
        **fields,  # type: ignore[arg-type]
    )
    table.end(ended, result)
    table.delete_audio(job.id)
    return "stored"


def _copy(file: IO[bytes], path: Path) -> None:
    with storage_errors(path):
        try:
            with path.open("xb") as copy:
                shutil.copyfileobj(file, copy, 2**20)
                copy.flush()
                os.fsync(copy.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
