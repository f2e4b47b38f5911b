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
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from choral.common.aio import cancel_tasks
from choral.errors import JobNotFound, JobNotReady, QueueFull
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_runner import JobEnvironment, JobRunner
from choral.jobs.job_states import MAX_INTERACTIVE_IN_A_ROW, RetryPolicy
from choral.jobs.outcome_writer import OutcomeWriter
from choral.jobs.record import JobRecord, transcript_from_json
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.webhook_delivery import WebhookDelivery, WebhookSender
from choral.remote.ssrf_guard import SsrfGuard
from choral.server.admission import CompletionRate
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_store import NewJob, Snapshot
from choral.server.jobs.job_table import JobTable
from choral.server.jobs.local_queue import LocalJob, LocalQueue
from choral.server.service import Service
from choral.server.settings import JobSettings
from choral.serving.request_events import OnEvent, TranscribeRequest
from choral.transcript import Transcript

log = logging.getLogger("choral.server")
ENGINE_POLL_S = 5.0
POLL_S = 60.0  # how often expired jobs are deleted if nothing else happens


class ChangeNotifier:
    """An event for each subscriber of a job, set whenever the job changes. Used in one event loop only."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def subscribe(self, job_id: str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._subscribers.setdefault(job_id, set()).add(changed)
        try:
            yield changed
        finally:
            subscribers = self._subscribers[job_id]
            subscribers.discard(changed)
            if not subscribers:
                del self._subscribers[job_id]

    def notify(self, job_id: str) -> None:
        for changed in self._subscribers.get(job_id, ()):
            changed.set()


class SqliteJobStore:
    def __init__(
        self, service: Service, settings: JobSettings, folder: Path, billing: JobBilling, webhook_secret: str = ""
    ) -> None:
        self._settings, self._folder, self._billing = settings, folder, billing
        self._service, self._secret = service, webhook_secret
        self._completion_rate = CompletionRate()

    async def open(self) -> None:
        service = self._service
        self._queue = queue = await asyncio.to_thread(LocalQueue, self._folder)
        await queue.run(JobTable.recover)
        self._notifier, self._start_lock = ChangeNotifier(), asyncio.Lock()
        max_active = max(2, service.settings.queue_limit // 2)
        max_running = min(service.models.requests_at_once, max_active - 1)
        max_fetching = max(1, min(service.models.prep.fetches // 2, max_active - max_running))
        self._fetch_slots = FetchSlots(max_fetching, max(1, max_fetching // 2))
        environment = JobEnvironment(
            open_audio=queue.open_audio,
            transcribe=self._transcribe,
            fetch_slots=self._fetch_slots,
            max_running=max_running,
            wants_segments=True,
            has_engine_ended=lambda error: bool(service.models.failed_models),  # else the server is shutting down
            on_open=lambda job: self._billing.charge(job.id, job.duration_s or 0.0),
            on_change=lambda job: self._notifier.notify(job.id),
        )
        policy = RetryPolicy(retry_s=self._settings.job_retry_s)
        self._outcomes = OutcomeWriter(queue, policy, service.metrics.jobs)
        self._runner = JobRunner(environment, self._outcomes, queue)
        sender = WebhookSender(SsrfGuard(service.models.prep.allowed_hosts), self._secret)
        webhooks = WebhookDelivery(queue, queue, sender, service.metrics.jobs)
        start = service.loops.start
        self._tasks = [start(self._dispatch(), "the job queue"), start(webhooks.run(), "webhook delivery")]

    async def drain(self, timeout_s: float) -> None:
        await cancel_tasks(self._tasks)
        await self._runner.is_idle_within(timeout_s)

    async def close(self) -> None:
        """Jobs that have not ended by now run again after the next start."""
        await cancel_tasks(self._tasks)
        await self._runner.close()
        await self._queue.close()

    async def require_capacity(self) -> None:
        n_open = await self._queue.run(JobTable.n_open)
        if n_open >= self._settings.job_limit:
            wait_s = self._completion_rate.retry_after_s(n_open)
            text = f"{n_open} jobs are already waiting or running: try again in {wait_s} s"
            raise QueueFull(text, retry_after_s=wait_s)

    async def submit(self, job: NewJob) -> JobRecord:
        if job.model is not None:
            self._service.names.resolve(job.model)
        # Now rather than in a failed job.
        self._service.require_supported(job.options, task_param="task", model=job.model)
        await self.require_capacity()
        path = self._queue.table.audio / job.id
        is_url = isinstance(job.audio, str)
        request = JobRequest(
            id=job.id,
            audio=AudioRef("url", str(job.audio), job.name) if is_url else AudioRef("path", str(path), job.name),
            options=job.options,
            model=job.model,
            priority=job.priority,
            callback=job.callback,
            keep_s=self._settings.keep_s,
            align=job.align,
        )
        try:
            if not isinstance(job.audio, str):
                await self._queue.store_audio(job.audio.file, path)
            record = await self._queue.run(lambda table: table.insert(request, self._settings.job_limit))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._runner.has_changed.set()
        return record

    async def show(self, job_id: str) -> JobRecord:
        running = self._find(job_id)
        return running.record if running is not None else await self._queue.run(lambda table: table.show(job_id))

    def _find(self, job_id: str) -> LocalJob | None:
        """The job, if it is running."""
        job = self._runner.active.get(job_id)
        return job if isinstance(job, LocalJob) else None

    async def newest(self, limit: int, prefix: str) -> Sequence[JobRecord]:
        records = await self._queue.run(lambda table: table.newest(limit, prefix))
        return [record if (job := self._find(record.id)) is None else job.record for record in records]

    async def result(self, job_id: str) -> Transcript:
        (await self.show(job_id)).require_success()
        stored = await self._queue.run(lambda table: table.result(job_id))
        if stored is None:
            raise JobNotFound(f"job {job_id} was just deleted: submit it again")
        return await asyncio.to_thread(transcript_from_json, stored)

    async def cancel(self, job_id: str) -> JobRecord:
        """At once if it is waiting; a running job is cancelled when it has left the engine."""
        async with self._start_lock:  # not while a job is between taken and started
            record = await self._queue.run(lambda table: table.cancel(job_id))
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

        await self._queue.run(delete)

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
        if (running := self._find(job_id)) is not None:
            return Snapshot(running.record, running.segments)
        record = await self._queue.run(lambda table: table.show(job_id))
        return Snapshot(record, (await self.result(job_id)).segments if record.state == "succeeded" else ())

    # --- running jobs ---

    async def _dispatch(self) -> None:
        """Start jobs while there is capacity, until cancelled."""
        n_interactive = 0  # in a row
        while True:
            await self._wait_for_engine()
            self._runner.has_changed.clear()
            self._completion_rate.record(self._outcomes.totals.n_ended)
            while self._runner.capacity > 0:
                job = await self._start_next(batch_first=n_interactive >= MAX_INTERACTIVE_IN_A_ROW)
                if job is None:
                    break
                n_interactive = n_interactive + 1 if job.request.priority == "interactive" else 0
            await self._queue.retry(JobTable.delete_expired)
            for name, n_jobs in (await self._queue.retry(JobTable.n_queued)).items():
                self._service.metrics.jobs.queue.labels(name).set(n_jobs)
            await self._wait_for_work(await self._queue.retry(JobTable.next_due_at))

    async def _wait_for_engine(self) -> None:
        """Return once the engine works; jobs stay queued until then, which may be after a restart."""
        if self._service.models.failure:
            log.error("jobs stay queued until the engine works: %s", self._service.models.failure)
            while self._service.models.failure:
                await asyncio.sleep(ENGINE_POLL_S)
            log.info("the engine works again: jobs are started")

    async def _transcribe(self, request: TranscribeRequest, on_event: OnEvent) -> Transcript:
        """A job is put back if its model fails while others work: it is not the cause."""
        if failure := self._service.models.engine_failure(request.model):
            raise QueueFull(f"the model of the job fails: {failure}")
        return await self._service.run(request, on_event)

    async def _start_next(self, *, batch_first: bool) -> LocalJob | None:
        """The job that was started; None if there is none that can be."""
        async with self._start_lock:
            job = await self._queue.take(self._fetch_slots, batch_first=batch_first)
            if job is not None:
                if not self._runner.active:
                    self._completion_rate.restart()
                self._runner.start(job)
        return job

    async def _wait_for_work(self, due_at: float | None) -> None:
        timeout_s = POLL_S if due_at is None else min(POLL_S, max(0.0, due_at - time.time()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._runner.has_changed.wait(), timeout_s)
