"""Jobs that workers on a Redis run: the same interface over `choral.jobs.AsyncClient`.

A worker says how far it is once a second and gives the segments with the result, so those come all at the end here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, cast

from choral.common.aio import cancel_tasks
from choral.errors import JobNotFound, QueueFull, RedisUnavailable
from choral.jobs.client import AsyncClient
from choral.jobs.record import JobRecord
from choral.jobs.settings import ClientSettings
from choral.server.admission import CompletionRate
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob, Snapshot
from choral.server.jobs.settings import JobSettings
from choral.types import Transcript

SETTLE_EVERY_S, SETTLE_AT_ONCE = 1.0, 200
LOOK_THROUGH = 1000  # of the newest jobs of all, for those of one owner


class RedisJobStore:
    def __init__(self, settings: JobSettings, charges: JobBilling) -> None:
        self._settings, self._charges = settings, charges
        self._owed = deque(charges.deferred)
        self._completion_rate = CompletionRate()

    async def open(self) -> None:
        """Raises `RedisUnavailable` at once where there is none."""
        client_settings = ClientSettings(
            namespace=self._settings.namespace,
            keep_s=self._settings.keep_s,
            queue_limit=self._settings.job_limit,
        )
        self._client = AsyncClient(self._settings.redis_url, client_settings)
        try:
            await self._client.counts()
        except BaseException:
            await self._client.close()
            raise
        self._settling = asyncio.create_task(self._settle())

    async def drain(self, timeout_s: float) -> None:
        """Workers go on without this server."""

    async def close(self) -> None:
        await cancel_tasks([self._settling])
        await self._client.close()

    async def require_capacity(self) -> None:
        counts = await self._client.counts()
        self._completion_rate.record(counts.ended)
        if min(counts.waiting.values()) >= self._settings.job_limit:
            raise self._full(sum(counts.waiting.values()))

    async def submit(self, job: NewJob) -> JobRecord:
        audio = job.audio if isinstance(job.audio, str) else cast(BinaryIO, job.audio.file)
        try:
            await self._client.submit(
                audio, job.options, priority=job.priority, callback=job.callback, job_id=job.id, name=job.name
            )
        except QueueFull as error:  # of this priority
            raise self._full(self._settings.job_limit) from error
        if self._charges.defer(job.id):
            self._owed.append(job.id)
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
        await self._client.delete(job_id)

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
            await cancel_tasks([watching])

    def _full(self, n_waiting: int) -> QueueFull:
        wait_s = self._completion_rate.retry_after_s(n_waiting)
        return QueueFull(f"{n_waiting} jobs are waiting already: try again in {wait_s} s", retry_after_s=wait_s)

    async def _settle(self) -> None:
        """Charges jobs as workers say how long they are, until it is cancelled."""
        while True:
            await asyncio.sleep(SETTLE_EVERY_S)
            with contextlib.suppress(RedisUnavailable):  # whoever sends the next job is told
                for _ in range(min(len(self._owed), SETTLE_AT_ONCE)):
                    is_settled = await self._settle_one(self._owed[0])
                    job_id = self._owed.popleft()
                    if not is_settled:
                        self._owed.append(job_id)

    async def _settle_one(self, job_id: str) -> bool:
        try:
            record = await self._client.show(job_id)
        except JobNotFound:
            duration_s: float | None = 0.0
        else:
            duration_s = record.duration_s or (0.0 if record.has_ended else None)
        if duration_s is None:
            return False
        self._charges.settle(job_id, duration_s)
        return True
