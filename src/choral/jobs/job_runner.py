"""Runs jobs: each is one task, which opens the audio, transcribes it in a request process, and stores the outcome.

It serves every store. Errors become the outcome of their job alone. An aborted job is left at once; processes that
still work on it stop at their next check.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from choral.common.aio import cancel_tasks
from choral.errors import ChoralError, EngineClosed, EngineError, UsageError
from choral.jobs.active_job import AbortReason, ActiveJob, JobAborted
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.outcome_writer import JobOutcome, OutcomeWriter
from choral.jobs.queue_store import StoreRetry
from choral.serving.input_sources import OpenFile
from choral.serving.request_events import (
    AudioOpened,
    OnEvent,
    Progressed,
    RequestEvent,
    SegmentReady,
    TranscribeRequest,
)
from choral.transcript import Transcript

log = logging.getLogger("choral.jobs")
REQUEUE_S = 5.0  # after the drain: time to put jobs back; those that are not run again as after a crash


def _ignore(*_: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """What a process gives its jobs, and what it is told of them."""

    open_audio: Callable[[ActiveJob], Awaitable[OpenFile | str]]
    transcribe: Callable[[TranscribeRequest, OnEvent], Awaitable[Transcript]]
    fetch_slots: FetchSlots
    max_running: int  # without those that are downloading, which `fetch_slots` bounds
    wants_segments: bool = False  # as they become final
    has_engine_ended: Callable[[EngineClosed], bool]  # which a job may have caused; else it is put back
    on_open: Callable[[ActiveJob], None]  # the duration is known; an exception is the job's outcome
    on_change: Callable[[ActiveJob], None] = _ignore  # it has started, progressed or ended
    on_leave: Callable[[ActiveJob, bool], None] = _ignore  # it has left the engine, with success or without


class JobRunner:
    def __init__(self, environment: JobEnvironment, outcomes: OutcomeWriter, retry: StoreRetry) -> None:
        self._environment, self._outcomes, self._retry = environment, outcomes, retry
        self.active: dict[str, ActiveJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.has_changed = asyncio.Event()  # a job has its audio, or has ended: others may start

    @property
    def capacity(self) -> int:
        """How many more jobs may start; those that are still downloading their audio do not count."""
        return self._environment.max_running - (len(self.active) - len(self._environment.fetch_slots))

    def start(self, job: ActiveJob) -> None:
        if job.id not in self.active:
            self.active[job.id] = job
            self._tasks[job.id] = asyncio.create_task(self._run(job))

    async def cancel(self, job_id: str) -> None:
        """Returns when the outcome is stored."""
        if job_id in self.active:
            self.active[job_id].abort("cancel")
            await asyncio.wait({self._tasks[job_id]})

    def abort_all(self, reason: AbortReason) -> None:
        for job in self.active.values():
            job.abort(reason)

    async def is_idle_within(self, timeout_s: float) -> bool:
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=timeout_s)
        return not self._tasks

    async def close(self) -> int:
        """Put back what still runs; returns how many jobs could not be."""
        self.abort_all("drain")
        await self.is_idle_within(REQUEUE_S)
        n_left = len(self._tasks)
        await cancel_tasks(list(self._tasks.values()))
        return n_left

    async def _run(self, job: ActiveJob) -> None:
        self._environment.on_change(job)
        try:
            await self._write(job, await self._outcome(job))
        finally:
            del self.active[job.id], self._tasks[job.id]
            self._environment.on_change(job)
            self.has_changed.set()

    async def _outcome(self, job: ActiveJob) -> JobOutcome:
        follower = JobFollower(job, self._environment, self.has_changed)
        try:
            transcript = await job.unless_aborted(self._transcribe(job, follower))
            follower.finish(has_succeeded=True)
            return transcript
        except JobAborted as abort:
            return abort
        except EngineClosed as error:
            if not self._environment.has_engine_ended(error):
                return error
            job.abort("engine_failed")
            return JobAborted()
        except ChoralError as error:
            return error
        except Exception as error:  # a bug must not fail the other jobs
            return _internal_error(job, error)
        finally:
            follower.finish(has_succeeded=False)  # no effect after a success

    async def _transcribe(self, job: ActiveJob, follower: JobFollower) -> Transcript:
        audio = await self._environment.open_audio(job)
        try:
            request = TranscribeRequest(
                audio=audio,
                options=job.request.options,
                model=job.request.model,
                text=job.request.align,
                priority=job.request.priority,
                wants_segments=self._environment.wants_segments,
            )
            return await self._environment.transcribe(request, follower.apply)
        finally:
            if isinstance(audio, OpenFile):
                audio.file.close()

    async def _write(self, job: ActiveJob, outcome: JobOutcome) -> None:
        try:
            await self._retry.call(lambda: self._outcomes.write(job, outcome))
        except UsageError as error:  # its record is damaged
            log.error("the outcome could not be written: %s", error, extra={"job": job.id})
        except Exception as error:
            log.error("the outcome could not be written: %s", error, extra={"job": job.id})
            failure = _internal_error(job, error)
            if isinstance(outcome, Transcript):  # for example, its text cannot be stored
                await self._write(job, failure)
            # Otherwise the job stays as it is: it runs again as after a crash, and the others go on.


def _internal_error(job: ActiveJob, error: Exception) -> EngineError:
    log.error("internal error: please report it", exc_info=error, extra={"job": job.id})
    return EngineError(f"internal error in Choral ({type(error).__name__}: {error}): please report it")


class JobFollower:
    """What the events of a request mean to its job: phase, progress, segments and timings."""

    def __init__(self, job: ActiveJob, environment: JobEnvironment, has_changed: asyncio.Event) -> None:
        self._job, self._environment, self._has_changed = job, environment, has_changed
        self._engine_started_s: float | None = None
        self._has_ended = False

    def apply(self, event: RequestEvent) -> None:
        job = self._job
        if self._engine_started_s is None:
            job.phase, self._engine_started_s = "engine", time.monotonic()
        match event:
            case AudioOpened():
                job.fetch_s, job.decode_s, job.duration_s = event.fetch_s, event.decode_s, event.duration_s
                self._environment.fetch_slots.release(job)
                self._environment.on_open(job)
                self._has_changed.set()
            case Progressed():
                job.done_s = event.done_s
            case SegmentReady():
                job.segments.append(event.segment)
        self._environment.on_change(job)

    def finish(self, *, has_succeeded: bool) -> None:
        """A second call has no effect."""
        if not self._has_ended:
            self._has_ended = True
            self._environment.fetch_slots.release(self._job)
            if self._engine_started_s is not None:
                self._job.engine_s = time.monotonic() - self._engine_started_s
            self._environment.on_leave(self._job, has_succeeded)
