"""Runs jobs in this process: each is one task, from the audio on disk to its outcome in the table.

A failure is the outcome of its job alone. If the server lacks capacity, the engine is closed or the server shuts down,
the job is requeued: that is not its fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.common.backoff import backoff_s
from choral.errors import ChoralError, EngineClosed, EngineError, QueueFull
from choral.jobs.record import JobRecord, State, Timings, transcript_to_json
from choral.jobs.request import JobRequest
from choral.remote.urls import url_host
from choral.server.admission import CompletionRate
from choral.server.jobs.async_table import AsyncTable
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_table import JobTable
from choral.server.service import Service
from choral.serving.input_sources import OpenFile
from choral.storage import storage_errors
from choral.types import Segment, Transcript

log = logging.getLogger("choral.server")
MAX_ATTEMPTS = 4  # of a job with a retryable error
NO_CAPACITY_PAUSE_S = 1.0
REQUEUE_TIMEOUT_S = 5.0  # at shutdown; jobs that are not requeued by then run again as after a crash


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


@dataclass(eq=False)
class RunningJob:
    """Changed in the event loop only."""

    record: JobRecord
    segments: list[Segment] = field(default_factory=list)
    is_cancelled: bool = False
    transcription: asyncio.Task[Transcript] | None = None
    whole: asyncio.Task[None] | None = None  # the transcription, and writing its outcome

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def fetches_from(self) -> str | None:
        """The host that its audio is being fetched from; None: it has its audio, and uses a run slot."""
        audio = self.record.request.audio
        return url_host(audio.location) if audio.kind == "url" and self.record.phase != "engine" else None

    def update(self, **changes: Any) -> None:
        self.record = dataclasses.replace(self.record, **changes)


class LocalRunner:
    def __init__(
        self,
        service: Service,
        table: AsyncTable,
        notifier: ChangeNotifier,
        wake: asyncio.Event,
        billing: JobBilling,
        retry_s: float,
    ) -> None:
        self._service, self._table, self._notifier, self._wake = service, table, notifier, wake
        self._billing, self._retry_s = billing, retry_s
        self._running: dict[str, RunningJob] = {}
        self.completion_rate, self._n_ended = CompletionRate(), 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def fetching_hosts(self) -> Counter[str]:
        """How many jobs are fetching their audio, by host."""
        return Counter(host for job in self._running.values() if (host := job.fetches_from) is not None)

    def find(self, job_id: str) -> RunningJob | None:
        return self._running.get(job_id)

    def start(self, job: RunningJob) -> None:
        if not self._running:
            self.completion_rate.restart()
        self._running[job.id] = job
        job.transcription = asyncio.create_task(self._transcribe(job))
        job.whole = asyncio.create_task(self._run(job))

    async def cancel(self, job_id: str) -> None:
        job = self._running.get(job_id)
        if job is not None and job.transcription is not None and job.whole is not None:
            job.is_cancelled = True
            job.transcription.cancel()
            await asyncio.wait({job.whole})

    async def wait(self, timeout_s: float) -> None:
        tasks = [job.whole for job in self._running.values() if job.whole is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def requeue_all(self) -> None:
        for job in list(self._running.values()):
            assert job.transcription is not None
            job.transcription.cancel()
        await self.wait(REQUEUE_TIMEOUT_S)

    async def _run(self, job: RunningJob) -> None:
        assert job.transcription is not None
        self._notifier.notify(job.id)
        try:
            await asyncio.wait({job.transcription})
            storing = asyncio.ensure_future(self._store_outcome(job, job.transcription))
            await asyncio.wait({storing})
            if (error := storing.exception()) is not None:  # the outcome cannot be stored, for example as text
                await self._fail_internally(job, error)
        finally:
            del self._running[job.id]
            self._notifier.notify(job.id)
            self._wake.set()

    async def _store_outcome(self, job: RunningJob, transcription: asyncio.Task[Transcript]) -> None:
        if transcription.cancelled():
            await self._requeue(job)
            return
        match transcription.exception():
            case None:
                await self._end(job, "succeeded", transcript=transcription.result())
            case QueueFull() | EngineClosed() as error:  # the job is not the cause
                log.warning("put back: %s", error, extra={"job": job.id})
                await asyncio.sleep(NO_CAPACITY_PAUSE_S)
                await self._requeue(job)
            case ChoralError() as error:
                await self._fail(job, error)
            case error:  # a bug must not take the other jobs down
                await self._fail_internally(job, error)

    async def _transcribe(self, job: RunningJob) -> Transcript:
        request = job.record.request
        started_s = time.monotonic()

        def on_duration(duration_s: float) -> None:
            self._billing.charge(request.id, duration_s)
            timings = Timings(
                queued_s=(job.record.started_at or 0.0) - job.record.queued_at, decode_s=time.monotonic() - started_s
            )
            job.update(phase="engine", duration_s=duration_s, timings=timings)
            self._notifier.notify(job.id)
            self._wake.set()  # another job may fetch now

        def on_progress(done_s: float, total_s: float) -> None:
            job.update(done_s=done_s)
            self._notifier.notify(job.id)

        def on_segment(segment: Segment) -> None:
            job.segments.append(segment)
            self._notifier.notify(job.id)

        job.update(phase="prep")
        with _open_audio(request) as audio:
            transcript = await self._service.transcribe(
                audio,
                request.options,
                priority=request.priority,
                on_segment=on_segment,
                on_progress=on_progress,
                on_duration=on_duration,
            )
        engine_s = time.monotonic() - started_s - (job.record.timings.decode_s or 0.0)
        job.update(timings=dataclasses.replace(job.record.timings, engine_s=engine_s))
        return transcript

    async def _requeue(self, job: RunningJob) -> None:
        if job.is_cancelled:
            await self._end(job, "cancelled")
        else:
            await self._table.retry(lambda table: table.requeue(job.id))

    async def _fail(self, job: RunningJob, error: ChoralError) -> None:
        text, kind = str(error).encode(errors="replace").decode(), type(error).__name__
        if job.is_cancelled:
            await self._end(job, "cancelled")
        elif error.is_retryable and job.record.attempts < MAX_ATTEMPTS:
            due_at = time.time() + backoff_s(job.record.attempts, self._retry_s)
            await self._table.retry(lambda table: table.reschedule(job.id, due_at, text, kind))
        else:
            job.update(error=text, error_kind=kind)
            await self._end(job, "dead" if error.is_retryable else "failed")

    async def _fail_internally(self, job: RunningJob, error: BaseException) -> None:
        log.error("internal error: please report it", exc_info=error, extra={"job": job.id})
        await self._fail(job, EngineError(f"internal error ({type(error).__name__}: {error}): please report it"))

    async def _end(self, job: RunningJob, state: State, *, transcript: Transcript | None = None) -> None:
        """The outcome is stored before the audio is deleted: after a crash in between, the next start deletes it."""
        ended = dataclasses.replace(job.record, state=state, ended_at=time.time(), phase=None)
        if transcript is not None:
            ended = dataclasses.replace(ended, duration_s=transcript.duration, error=None, error_kind=None)

        def write(table: JobTable) -> None:
            table.end(ended, None if transcript is None else transcript_to_json(transcript))
            table.delete_audio(job.id)

        await self._table.retry(write)
        self._service.metrics.jobs.labels(state).inc()
        self._n_ended += 1
        self.completion_rate.record(self._n_ended)


@contextlib.contextmanager
def _open_audio(request: JobRequest) -> Iterator[OpenFile | str]:
    if request.audio.kind == "url":
        yield request.audio.location
        return
    with storage_errors(Path(request.audio.location)):
        file = open(request.audio.location, "rb")  # noqa: SIM115
    with file:
        yield OpenFile(request.audio.name, file)
