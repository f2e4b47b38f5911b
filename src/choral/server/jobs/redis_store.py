"""Jobs that workers on a Redis run: the store's interface over `choral.jobs.AsyncClient`.

A worker reports progress once a second and delivers the segments with the result, so they all arrive at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, cast

from choral.common.aio import LoopSupervisor, cancel_tasks
from choral.errors import JobNotFound, QueueFull, RedisUnavailable, UsageError
from choral.jobs.client import AsyncClient
from choral.jobs.record import JobRecord
from choral.jobs.settings import ClientSettings
from choral.server.admission import CompletionRate
from choral.server.api_errors import ApiError
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob, Snapshot
from choral.server.settings import JobSettings
from choral.transcript import Transcript

SETTLE_EVERY_S, SETTLE_BATCH = 1.0, 200
MAX_SCANNED = 1000  # newest jobs of all owners that are searched for those of one


class RedisJobStore:
    def __init__(self, settings: JobSettings, billing: JobBilling, loops: LoopSupervisor) -> None:
        self._settings, self._billing, self._loops = settings, billing, loops
        self._deferred = deque(billing.deferred)
        self._completion_rate = CompletionRate()

    async def open(self) -> None:
        """Raise `RedisUnavailable` at once if Redis cannot be reached."""
        client_settings = ClientSettings(
            namespace=self._settings.namespace, keep_s=self._settings.keep_s, queue_limit=self._settings.job_limit
        )
        self._client = AsyncClient(self._settings.redis_url, client_settings)
        try:
            await self._client.counts()
        except BaseException:
            await self._client.close()
            raise
        self._settling = self._loops.start(self._settle_deferred(), "the charging of jobs to API keys")

    async def drain(self, timeout_s: float) -> None:
        """Nothing to do: workers go on without this server."""

    async def close(self) -> None:
        await cancel_tasks([self._settling])
        await self._client.close()

    async def require_capacity(self) -> None:
        counts = await self._client.counts()
        self._completion_rate.record(counts.ended)
        if min(counts.waiting.values()) >= self._settings.job_limit:
            raise self._queue_full(sum(counts.waiting.values()))

    async def submit(self, job: NewJob) -> JobRecord:
        if job.model is not None:
            text = "jobs of this server run with the model of their worker: omit `model`"
            raise ApiError(text, param="model", code="unsupported_value")
        audio = job.audio if isinstance(job.audio, str) else cast(BinaryIO, job.audio.file)
        try:
            await self._client.submit(
                audio,
                job.options,
                priority=job.priority,
                callback=job.callback,
                job_id=job.id,
                name=job.name,
                align=job.align,
            )
        except QueueFull as error:  # the queue of this priority
            raise self._queue_full(self._settings.job_limit) from error
        if self._billing.defer(job.id):
            self._deferred.append(job.id)
        return await self._client.show(job.id)

    async def show(self, job_id: str) -> JobRecord:
        return await self._client.show(job_id)

    async def newest(self, limit: int, prefix: str) -> Sequence[JobRecord]:
        records = await self._client.list(MAX_SCANNED if prefix else limit)
        return [record for record in records if record.id.startswith(prefix)][:limit]

    async def result(self, job_id: str) -> Transcript:
        return await self._client.result(job_id)

    async def cancel(self, job_id: str) -> JobRecord:
        return await self._client.cancel(job_id)

    async def delete(self, job_id: str) -> None:
        await self._client.delete(job_id)

    async def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        latest: asyncio.Queue[JobRecord | None] = asyncio.Queue(1)  # a slow reader skips states, and none pile up

        def keep(record: JobRecord) -> None:
            while not latest.empty():
                latest.get_nowait()
            latest.put_nowait(record)

        watching = asyncio.create_task(self._client.wait_all([job_id], on_record=keep))
        watching.add_done_callback(lambda _: None if latest.full() else latest.put_nowait(None))
        try:
            while (record := await latest.get()) is not None:
                is_done = record.state == "succeeded"
                yield Snapshot(record, (await self.result(job_id)).segments if is_done else ())
                if record.has_ended:
                    return
                if watching.done() and latest.empty():
                    break
            await watching
        finally:
            await cancel_tasks([watching])

    def _queue_full(self, n_waiting: int) -> QueueFull:
        wait_s = self._completion_rate.retry_after_s(n_waiting)
        return QueueFull(f"{n_waiting} jobs are already waiting: try again in {wait_s} s", retry_after_s=wait_s)

    async def _settle_deferred(self) -> None:
        """Charge jobs as workers report their durations, until cancelled."""
        while True:
            await asyncio.sleep(SETTLE_EVERY_S)
            with contextlib.suppress(RedisUnavailable):  # the next request reports it
                for _ in range(min(len(self._deferred), SETTLE_BATCH)):
                    is_settled = await self._settle(self._deferred[0])
                    job_id = self._deferred.popleft()
                    if not is_settled:
                        self._deferred.append(job_id)

    async def _settle(self, job_id: str) -> bool:
        try:
            record = await self._client.show(job_id)
        except (JobNotFound, UsageError):  # deleted, or submitted by a version whose jobs this one cannot read
            duration_s: float | None = 0.0
        else:
            duration_s = record.duration_s or (0.0 if record.has_ended else None)
        if duration_s is None:
            return False
        self._billing.settle(job_id, duration_s)
        return True
