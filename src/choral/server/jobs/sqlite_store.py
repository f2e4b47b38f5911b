"""Jobs that run in this process and are kept in a folder: a restart, even by kill -9, loses nothing.

A job is on the disk before its id is returned. Jobs that were running when the process ended run again. At most half of
the server's capacity goes to jobs, so that they never keep other requests out. A job uses a run slot once its audio is
here: jobs that wait for slow downloads delay neither those that do not nor, beyond a share of each host, each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
from choral.server.jobs.local_webhooks import LocalWebhooks
from choral.server.service import Service
from choral.server.settings import JobSettings
from choral.types import Priority, Transcript

log = logging.getLogger("choral.server")
INTERACTIVE_PER_BATCH = 4  # a batch job gets its turn after this many interactive ones
ENGINE_POLL_S = 5.0
POLL_S = 60.0  # how often expired jobs are deleted if nothing else happens


class SqliteJobStore:
    def __init__(
        self, service: Service, settings: JobSettings, folder: Path, billing: JobBilling, webhook_secret: str = ""
    ) -> None:
        self._settings, self._folder, self._billing = settings, folder, billing
        self._service, self._secret = service, webhook_secret
        self._max_active = max(2, service.settings.queue_limit // 2)
        self._max_running = min(service.model.requests_at_once, self._max_active - 1)
        self._max_fetching = max(1, min(service.runtime.settings.fetches, self._max_active) // 2)
        self._max_per_host = max(1, self._max_fetching // 2)

    async def open(self) -> None:
        self._table = await asyncio.to_thread(AsyncTable, self._folder)
        await self._table.run(JobTable.recover)
        self._notifier, self._wake, self._start_lock = ChangeNotifier(), asyncio.Event(), asyncio.Lock()
        self._runner = LocalRunner(
            self._service, self._table, self._notifier, self._wake, self._billing, self._settings.job_retry_s
        )
        guard = SsrfGuard(self._service.runtime.settings.limits.allowed_hosts or ())
        webhooks = LocalWebhooks(self._table, WebhookSender(guard, self._secret))
        start = self._service.loops.start
        self._tasks = [start(self._dispatch(), "the job queue"), start(webhooks.run(), "webhook delivery")]

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
            await self._wait_for_engine()
            self._wake.clear()
            while self._has_run_slot:
                priority = await self._start_next(batch_first=n_interactive >= INTERACTIVE_PER_BATCH)
                if priority is None:
                    break
                n_interactive = n_interactive + 1 if priority == "interactive" else 0
            await self._table.retry(JobTable.delete_expired)
            for name, n_jobs in (await self._table.retry(JobTable.n_queued)).items():
                self._service.metrics.queued_jobs.labels(name).set(n_jobs)
            await self._wait_for_work(await self._table.retry(JobTable.next_due_at))

    async def _wait_for_engine(self) -> None:
        """Return once the engine works; jobs stay queued until then, which may be after a restart."""
        if not self._service.model.is_working:
            log.error("jobs stay queued until the engine works: %s", self._service.model.failure)
            while not self._service.model.is_working:
                await asyncio.sleep(ENGINE_POLL_S)
            log.info("the engine works again: jobs are started")

    @property
    def _has_run_slot(self) -> bool:
        n_active, n_fetching = len(self._runner), self._runner.fetching_hosts.total()
        return n_active < self._max_active and n_active - n_fetching < self._max_running

    async def _start_next(self, *, batch_first: bool) -> Priority | None:
        """Start the next job; its priority, or None if no job can be started."""
        hosts = self._runner.fetching_hosts
        with_urls = hosts.total() < self._max_fetching
        skip_hosts = {host for host, n_jobs in hosts.items() if n_jobs >= self._max_per_host}
        async with self._start_lock:
            record = await self._table.retry(
                lambda table: table.take(batch_first=batch_first, with_urls=with_urls, skip_hosts=skip_hosts)
            )
            if record is not None:
                self._runner.start(RunningJob(record))
        return None if record is None else record.request.priority

    async def _wait_for_work(self, due_at: float | None) -> None:
        timeout_s = POLL_S if due_at is None else min(POLL_S, max(0.0, due_at - time.time()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)
