"""Jobs that run in this process and are kept in a folder: a restart, also by kill -9, loses nothing.

A job is on the disk before its id is given out. What was under way when the process ended is run again. At most half
of the server's places go to jobs, so that they never keep others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from choral.common.aio import cancel_tasks
from choral.errors import JobNotFound, JobNotReady, QueueFull
from choral.jobs.record import JobRecord, transcript_from_json
from choral.jobs.request import AudioRef, JobRequest
from choral.server.api_errors import ApiError
from choral.server.jobs.async_table import AsyncTable
from choral.server.jobs.callbacks import Callbacks
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob, Snapshot
from choral.server.jobs.job_table import JobTable
from choral.server.jobs.local_runner import LocalRunner, RunningJob
from choral.server.jobs.news import ChangeNotifier
from choral.server.jobs.settings import JobSettings
from choral.server.service import Service
from choral.types import Priority, TranscribeOptions, Transcript

BATCH_AFTER = 4  # interactive jobs comes one of the others
LOOK_AGAIN_S = 60.0  # for results that have run out, should nothing else happen


class SqliteJobStore:
    def __init__(
        self, service: Service, settings: JobSettings, folder: Path, charges: JobBilling, webhook_secret: str = ""
    ) -> None:
        self._settings, self._folder, self._charges = settings, folder, charges
        self._service, self._secret = service, webhook_secret
        self._n_at_once = max(1, min(service.model.requests_at_once, service.settings.queue_limit // 2))

    async def open(self) -> None:
        self._disk = await asyncio.to_thread(AsyncTable, self._folder)
        await self._disk.do(JobTable.recover)
        self._news, self._wake, self._taking = ChangeNotifier(), asyncio.Event(), asyncio.Lock()
        self._runs = LocalRunner(
            self._service, self._disk, self._news, self._wake, self._charges, self._settings.job_retry_s
        )
        callbacks = Callbacks(self._disk, self._service.prep.settings.allowed_hosts, self._secret)
        self._tasks = [asyncio.create_task(self._hand_out()), asyncio.create_task(callbacks.run())]

    async def drain(self, timeout_s: float) -> None:
        await cancel_tasks(self._tasks)
        await self._runs.wait(timeout_s)

    async def close(self) -> None:
        """What has not come to its end by now is run by the next start."""
        await cancel_tasks(self._tasks)
        await self._runs.hand_back_all()
        await self._disk.close()

    async def require_capacity(self) -> None:
        n_open = await self._disk.do(JobTable.n_open)
        if n_open >= self._settings.job_limit:
            wait_s = self._runs.completion_rate.retry_after_s(n_open)
            text = f"{n_open} jobs are waiting or running already: try again in {wait_s} s"
            raise QueueFull(text, retry_after_s=wait_s)

    async def submit(self, job: NewJob) -> JobRecord:
        _require_fitting(self._service, job.options)
        await self.require_capacity()
        place = self._disk.table.audio / job.id
        is_address = isinstance(job.audio, str)
        request = JobRequest(
            id=job.id,
            audio=AudioRef("url", str(job.audio), job.name) if is_address else AudioRef("path", str(place), job.name),
            options=job.options,
            priority=job.priority,
            callback=job.callback,
            keep_s=self._settings.keep_s,
        )
        try:
            if not isinstance(job.audio, str):
                await self._disk.keep(job.audio.file, place)
            record = await self._disk.do(lambda table: table.insert(request, self._settings.job_limit))
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        self._wake.set()
        return record

    async def show(self, job_id: str) -> JobRecord:
        run = self._runs.of(job_id)
        return run.record if run is not None else await self._disk.do(lambda table: table.show(job_id))

    async def newest(self, limit: int, owner: str) -> Sequence[JobRecord]:
        records = await self._disk.do(lambda table: table.newest(limit, owner))
        under_way = {record.id: self._runs.of(record.id) for record in records}
        return [run.record if (run := under_way[record.id]) is not None else record for record in records]

    async def result(self, job_id: str) -> Transcript:
        (await self.show(job_id)).require_success()
        stored = await self._disk.do(lambda table: table.result(job_id))
        if stored is None:
            raise JobNotFound(f"job {job_id} was just forgotten: submit it again")
        return await asyncio.to_thread(transcript_from_json, stored)

    async def cancel(self, job_id: str) -> JobRecord:
        """At once where it waits, and as soon as it has left the engine where it runs."""
        async with self._taking:  # not between a job's being taken and its being begun
            record = await self._disk.do(lambda table: table.cancel(job_id))
        if record.state == "running":
            await self._runs.cancel(job_id)
            record = await self.show(job_id)
        self._news.tell(job_id)
        return record

    async def forget(self, job_id: str) -> None:
        def forget(table: JobTable) -> None:
            record = table.show(job_id)
            if not record.has_ended:
                raise JobNotReady(f"job {job_id} is {record.state}: cancel it first")
            table.forget(job_id)

        await self._disk.do(forget)

    async def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        with self._news.of(job_id) as changed:
            while True:
                changed.clear()
                snapshot = await self._snapshot(job_id)
                yield snapshot
                if snapshot.record.has_ended:
                    return
                await changed.wait()

    async def _snapshot(self, job_id: str) -> Snapshot:
        run = self._runs.of(job_id)
        if run is not None:
            return Snapshot(run.record, run.segments)
        record = await self._disk.do(lambda table: table.show(job_id))
        return Snapshot(record, (await self.result(job_id)).segments if record.state == "succeeded" else ())

    async def _hand_out(self) -> None:
        """Starts jobs as there is room for them, until it is cancelled."""
        n_in_a_row = 0
        while True:
            self._wake.clear()
            while len(self._runs) < self._n_at_once:
                begun = await self._start_next(is_turn_of_batch=n_in_a_row >= BATCH_AFTER)
                if begun is None:
                    break
                n_in_a_row = n_in_a_row + 1 if begun == "interactive" else 0
            await self._disk.retry_until_written(JobTable.expire)
            for priority, n_jobs in (await self._disk.do(JobTable.waiting)).items():
                self._service.metrics.queued_jobs.labels(priority).set(n_jobs)
            await self._pause(await self._disk.do(JobTable.next_due_at))

    async def _start_next(self, *, is_turn_of_batch: bool) -> Priority | None:
        """The priority of the job that was started; None: nothing waits."""
        async with self._taking:
            record = await self._disk.retry_until_written(lambda table: table.take(batch_first=is_turn_of_batch))
            if record is not None:
                self._runs.begin(RunningJob(record))
        return None if record is None else record.request.priority

    async def _pause(self, due_at: float | None) -> None:
        longest_s = LOOK_AGAIN_S if due_at is None else min(LOOK_AGAIN_S, max(0.0, due_at - time.time()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), longest_s)


def _require_fitting(service: Service, options: TranscribeOptions) -> None:
    """Better known to the caller now than from a job that fails."""
    if service.model.is_multilingual:
        return
    if options.task == "translate":
        text = f"{service.model_id} knows only English and cannot translate: serve a multilingual model"
        raise ApiError(text, param="task", code="unsupported_value")
    if options.language not in (None, "en"):
        text = f"{service.model_id} knows only English: leave out `language`, or serve a multilingual model"
        raise ApiError(text, param="language", code="unsupported_value")
