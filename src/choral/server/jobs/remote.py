"""Jobs that workers on a Redis run: the same interface over `choral.jobs.AsyncClient`.

A worker says how far it is once a second and gives the segments with the result, so those come all at the end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, cast

from choral.errors import QueueFull
from choral.jobs.client import AsyncClient
from choral.jobs.record import JobRecord
from choral.jobs.settings import ClientSettings
from choral.jobs.tasks import end_tasks
from choral.server.jobs.settings import JobSettings
from choral.server.jobs.store import NewJob, Snapshot
from choral.types import Transcript

LOOK_THROUGH = 1000  # of the newest jobs of all, for those of one owner


class RedisJobs:
    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings

    async def open(self) -> None:
        """Raises `RedisUnavailable` at once where there is none."""
        client_settings = ClientSettings(
            namespace=self._settings.namespace, keep_s=self._settings.keep_s, queue_limit=self._settings.job_limit
        )
        self._client = AsyncClient(self._settings.redis, client_settings)
        try:
            await self._client.counts()
        except BaseException:
            await self._client.close()
            raise

    async def drain(self, timeout_s: float) -> None:
        """Workers go on without this server."""

    async def close(self) -> None:
        await self._client.close()

    async def require_room(self) -> None:
        waiting = (await self._client.counts()).waiting
        if min(waiting.values()) >= self._settings.job_limit:
            raise QueueFull(f"{sum(waiting.values())} jobs are waiting already: try again in a while")

    async def submit(self, job: NewJob) -> JobRecord:
        audio = job.audio if isinstance(job.audio, str) else cast(BinaryIO, job.audio.file)
        await self._client.submit(
            audio, job.options, priority=job.priority, callback=job.callback, job_id=job.id, name=job.name
        )
        return await self._client.show(job.id)

    async def show(self, job_id: str) -> JobRecord:
        return await self._client.show(job_id)

    async def newest(self, limit: int, owner: str) -> Sequence[JobRecord]:
        records = await self._client.list(LOOK_THROUGH if owner else limit)
        return [record for record in records if record.id.startswith(owner)][:limit]

    async def result(self, job_id: str) -> Transcript:
        return await self._client.result(job_id)

    async def cancel(self, job_id: str) -> JobRecord:
        return await self._client.cancel(job_id)

    async def forget(self, job_id: str) -> None:
        await self._client.forget(job_id)

    async def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        records: asyncio.Queue[JobRecord | None] = asyncio.Queue()

        async def watch() -> None:
            try:
                await self._client.wait_all([job_id], on_record=records.put_nowait)
            finally:
                records.put_nowait(None)

        watching = asyncio.create_task(watch())
        try:
            while (record := await records.get()) is not None:
                is_done = record.state == "succeeded"
                yield Snapshot(record, (await self.result(job_id)).segments if is_done else ())
            await watching
        finally:
            await end_tasks([watching])
