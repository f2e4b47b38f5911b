"""Runs one job to its outcome in a request process: fetch, decode, transcribe.

Errors become the outcome of that job alone. An aborted job is left at once; processes that still work on it stop at
their next check.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING

from choral.audio.spool import cannot_store, temporary_file
from choral.common.aio import run_in_thread
from choral.errors import AudioNotFound, ChoralError, EngineClosed, EngineError
from choral.jobs.active_job import ActiveJob, JobAborted
from choral.jobs.batches import BatchFormer, JobBatch
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_retry import RedisRetry
from choral.serving.async_requests import AsyncRequests
from choral.serving.input_sources import OpenFile
from choral.serving.request_events import AudioOpened, Progressed, RequestEvent, TranscribeRequest
from choral.types import Transcript

if TYPE_CHECKING:
    from choral.serving.runtime import Runtime

log = logging.getLogger("choral.jobs")
MAX_BLOBS = 2  # at once: each is in memory as a whole until it is in a file
JobOutcome = Transcript | ChoralError | JobAborted


class JobRunner:
    def __init__(
        self, runtime: Runtime, queue: JobQueue, retry: RedisRetry, batches: BatchFormer, fetch_slots: FetchSlots
    ) -> None:
        self._running, self._queue, self._retry = AsyncRequests(runtime), queue, retry
        self._batches, self._fetch_slots = batches, fetch_slots
        self._blob_slots = asyncio.Semaphore(MAX_BLOBS)

    async def run(self, job: ActiveJob) -> JobOutcome:
        """Raises only `EngineClosed`, after which the worker can run no more jobs."""
        follower = JobFollower(job, self._batches, self._fetch_slots)
        try:
            transcript = await job.unless_aborted(self._transcribe(job, follower))
            follower.finish(has_succeeded=True)
            return transcript
        except JobAborted as abort:
            return abort
        except EngineClosed:
            raise
        except ChoralError as error:
            return error
        except Exception as error:  # a bug must not fail the other jobs
            log.exception("internal error: please report it", extra={"job": job.id})
            return EngineError(f"internal error in Choral ({type(error).__name__}: {error}): please report it")
        finally:
            follower.finish(has_succeeded=False)  # no effect after a success

    async def _transcribe(self, job: ActiveJob, follower: JobFollower) -> Transcript:
        async with self._open(job) as audio:
            request = TranscribeRequest(
                audio=audio, options=job.request.options, priority=job.request.priority, wants_segments=False
            )
            return await self._running.transcribe(request, follower.apply)

    @asynccontextmanager
    async def _open(self, job: ActiveJob) -> AsyncIterator[OpenFile | str]:
        """The audio's path or URL, or a file with the audio itself."""
        audio = job.request.audio
        if audio.kind not in ("blob", "inline"):
            yield audio.location
            return
        with temporary_file() as file:
            if audio.kind == "inline":
                inline, job.audio = job.audio, b""
                store(file, inline)
            else:
                async with self._blob_slots:
                    blob = await self._retry.call(lambda: self._queue.read_blob(audio.location))
                    if not blob:
                        raise AudioNotFound(f"the audio of {audio.name} has expired in Redis: submit it again")
                    await run_in_thread(lambda: store(file, blob), "blob")
            yield OpenFile("the given bytes", file)


def store(file: IO[bytes], audio: bytes) -> None:
    try:
        file.write(audio)
        file.flush()
    except OSError as error:
        raise cannot_store(error) from error


class JobFollower:
    """What the events of a request mean to its job: phase, progress, timings, and its batch."""

    def __init__(self, job: ActiveJob, batches: BatchFormer, fetch_slots: FetchSlots) -> None:
        self._job, self._batches, self._fetch_slots = job, batches, fetch_slots
        self._batch: JobBatch | None = None
        self._engine_started_s: float | None = None
        self._has_ended = False

    def apply(self, event: RequestEvent) -> None:
        job = self._job
        if self._engine_started_s is None:
            job.phase, self._engine_started_s = "engine", time.monotonic()
        if isinstance(event, AudioOpened):
            job.fetch_s, job.decode_s, job.duration_s = event.fetch_s, event.decode_s, event.duration_s
            self._fetch_slots.release(job)
            self._join_batch().enter_engine()
        elif isinstance(event, Progressed):
            job.done_s = event.done_s

    def finish(self, *, has_succeeded: bool) -> None:
        """A second call has no effect."""
        if not self._has_ended:
            self._has_ended = True
            self._fetch_slots.release(self._job)
            if self._engine_started_s is not None:
                self._job.engine_s = time.monotonic() - self._engine_started_s
            self._join_batch().leave(has_succeeded=has_succeeded)

    def _join_batch(self) -> JobBatch:
        self._batch = self._batch or self._batches.join(self._job)
        return self._batch
