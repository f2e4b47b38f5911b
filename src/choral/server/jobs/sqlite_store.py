"""Jobs that run in this process and are kept in a folder: a restart, even by kill -9, loses nothing.

A job is on the disk before its id is returned. Jobs that were running when the process ended run again. At most half of
the server's capacity goes to jobs, so that they never keep other requests out.
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
from choral.jobs.webhook_delivery import WebhookSender
from choral.remote.ssrf_guard import SsrfGuard
from choral.server.jobs.async_table import AsyncTable
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob, Snapshot
from choral.server.jobs.job_table import JobTable
from choral.server.jobs.local_runner import ChangeNotifier, LocalRunner, RunningJob
from choral.server.service import Service
from choral.server.settings import JobSettings
from choral.types import Priority, Transcript

INTERACTIVE_PER_BATCH = 4  # a batch job gets its turn after this many interactive ones
WEBHOOK_BATCH, WEBHOOK_POLL_S = 16, 1.0
POLL_S = 60.0  # how often expired jobs are deleted if nothing else happens


class SqliteJobStore:
    def __init__(
        self, service: Service, settings: JobSettings, folder: Path, billing: JobBilling, webhook_secret: str = ""
    ) -> None:
        self._settings, self._folder, self._billing = settings, folder, billing
        self._service, self._secret = service, webhook_secret
        self._max_running = max(1, min(service.model.requests_at_once, service.settings.queue_limit // 2))

    async def open(self) -> None:
        self._table = await asyncio.to_thread(AsyncTable, self._folder)
        await self._table.run(JobTable.recover)
        self._notifier, self._wake, self._start_lock = ChangeNotifier(), asyncio.Event(), asyncio.Lock()
        self._runner = LocalRunner(
            self._service, self._table, self._notifier, self._wake, self._billing, self._settings.job_retry_s
        )
        webhooks = WebhookLoop(self._table, self._service.prep.settings.allowed_hosts, self._secret)
        self._tasks = [asyncio.create_task(self._dispatch()), asyncio.create_task(webhooks.run())]

    async def drain(self, timeout_s: float) -> None:
        await cancel_tasks(self._tasks)
        await self._runner.wait(timeout_s)

    async def close(self) -> None:
        """Jobs that have not ended by now run again after the next start."""
        await cancel_tasks(self._tasks)
        await self._runner.requeue_all()
        await self._table.close()

    async def require_capacity(self) -> None:
        n_open = await self._table.run(JobTable.n_open)
        if n_open >= self._settings.job_limit:
            wait_s = self._runner.completion_rate.retry_after_s(n_open)
            text = f"{n_open} jobs are already waiting or running: try again in {wait_s} s"
            raise QueueFull(text, retry_after_s=wait_s)

    async def submit(self, job: NewJob) -> JobRecord:
        self._service.require_supported(job.options, task_param="task")  # now rather than in a failed job
        await self.require_capacity()
        path = self._table.table.audio / job.id
        is_url = isinstance(job.audio, str)
        request = JobRequest(
            id=job.id,
            audio=AudioRef("url", str(job.audio), job.name) if is_url else AudioRef("path", str(path), job.name),
            options=job.options,
            priority=job.priority,
            callback=job.callback,
            keep_s=self._settings.keep_s,
        )
        try:
            if not isinstance(job.audio, str):
                await self._table.store_audio(job.audio.file, path)
            record = await self._table.run(lambda table: table.insert(request, self._settings.job_limit))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._wake.set()
        return record

    async def show(self, job_id: str) -> JobRecord:
        running = self._runner.find(job_id)
        return running.record if running is not None else await self._table.run(lambda table: table.show(job_id))

    async def newest(self, limit: int, prefix: str) -> Sequence[JobRecord]:
        records = await self._table.run(lambda table: table.newest(limit, prefix))
        running = {record.id: self._runner.find(record.id) for record in records}
        return [job.record if (job := running[record.id]) is not None else record for record in records]

    async def result(self, job_id: str) -> Transcript:
        (await self.show(job_id)).require_success()
        stored = await self._table.run(lambda table: table.result(job_id))
        if stored is None:
            raise JobNotFound(f"job {job_id} was just deleted: submit it again")
        return await asyncio.to_thread(transcript_from_json, stored)

    async def cancel(self, job_id: str) -> JobRecord:
        """At once if it is waiting; a running job is cancelled when it has left the engine."""
        async with self._start_lock:  # not while a job is between taken and started
            record = await self._table.run(lambda table: table.cancel(job_id))
        if record.state == "running":
            await self._runner.cancel(job_id)
            record = await self.show(job_id)
        self._notifier.notify(job_id)
        return record

    async def delete(self, job_id: str) -> None:
        def delete(table: JobTable) -> None:
            record = table.show(job_id)
            if not record.has_ended:
                raise JobNotReady(f"job {job_id} is {record.state}: cancel it first")
            table.delete(job_id)

        await self._table.run(delete)

    async def follow(self, job_id: str) -> AsyncIterator[Snapshot]:
        with self._notifier.subscribe(job_id) as changed:
            while True:
                changed.clear()
                snapshot = await self._snapshot(job_id)
                yield snapshot
                if snapshot.record.has_ended:
                    return
                await changed.wait()

    async def _snapshot(self, job_id: str) -> Snapshot:
        running = self._runner.find(job_id)
        if running is not None:
            return Snapshot(running.record, running.segments)
        record = await self._table.run(lambda table: table.show(job_id))
        return Snapshot(record, (await self.result(job_id)).segments if record.state == "succeeded" else ())

    async def _dispatch(self) -> None:
        """Start jobs while there is capacity, until cancelled."""
        n_interactive = 0  # in a row
        while True:
            self._wake.clear()
            while len(self._runner) < self._max_running:
                priority = await self._start_next(batch_first=n_interactive >= INTERACTIVE_PER_BATCH)
                if priority is None:
                    break
                n_interactive = n_interactive + 1 if priority == "interactive" else 0
            await self._table.retry_until_written(JobTable.delete_expired)
            for name, n_jobs in (await self._table.run(JobTable.n_queued)).items():
                self._service.metrics.queued_jobs.labels(name).set(n_jobs)
            await self._wait_for_work(await self._table.run(JobTable.next_due_at))

    async def _start_next(self, *, batch_first: bool) -> Priority | None:
        """Start the next job; its priority, or None if no job is queued."""
        async with self._start_lock:
            record = await self._table.retry_until_written(lambda table: table.take(batch_first=batch_first))
            if record is not None:
                self._runner.start(RunningJob(record))
        return None if record is None else record.request.priority

    async def _wait_for_work(self, due_at: float | None) -> None:
        timeout_s = POLL_S if due_at is None else min(POLL_S, max(0.0, due_at - time.time()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)


class WebhookLoop:
    """Delivers the webhooks of jobs that have ended; failed deliveries stay due, even across a restart."""

    def __init__(self, table: AsyncTable, allowed_hosts: tuple[str, ...], secret: str) -> None:
        self._table, self._sender = table, WebhookSender(SsrfGuard(allowed_hosts), secret)

    async def run(self) -> None:
        """Send due webhooks until cancelled."""
        while True:
            due = await self._table.retry_until_written(lambda table: table.due_webhooks(WEBHOOK_BATCH))
            await asyncio.gather(*(self._send(record) for record in due))
            if len(due) < WEBHOOK_BATCH:
                await asyncio.sleep(WEBHOOK_POLL_S)

    async def _send(self, record: JobRecord) -> None:
        result = await self._table.run(lambda table: table.result(record.id))
        sent = await self._sender.send(record, None if result is None else result.encode())
        due_at = time.time() + sent.delay_s if sent.outcome == "pending" else None
        await self._table.retry_until_written(
            lambda table: table.record_webhook(record.id, sent.attempts, sent.outcome, due_at)
        )
