"""Runs one job to its outcome: prepare the audio, wait for an engine slot, transcribe.

Errors become the outcome of that job alone. An aborted job is left at once; threads and processes that still work on it
stop at their next check.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from choral.audio.recording import Cancelled
from choral.common.aio import closing_in_thread, run_in_thread
from choral.errors import AudioNotFound, ChoralError, EngineClosed, EngineError
from choral.jobs.active_job import ActiveJob, JobAborted
from choral.jobs.batches import BatchFormer, JobBatch
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_retry import RedisRetry
from choral.types import Transcript

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import Prepared, PrepPool

log = logging.getLogger("choral.jobs")
MAX_BLOBS = 2  # at once: each is in memory as a whole until it is decoded
JobOutcome = Transcript | ChoralError | JobAborted


class JobRunner:
    def __init__(
        self,
        model: Model,
        prep: PrepPool,
        queue: JobQueue,
        retry: RedisRetry,
        batches: BatchFormer,
        fetch_slots: FetchSlots,
        n_concurrent: int,
    ) -> None:
        self._model, self._prep, self._queue, self._retry = model, prep, queue, retry
        self._batches, self._fetch_slots = batches, fetch_slots
        self._engine_slots = asyncio.Semaphore(n_concurrent)
        self._blob_slots = asyncio.Semaphore(MAX_BLOBS)

    async def run(self, job: ActiveJob) -> JobOutcome:
        """Raises only `EngineClosed`, after which the worker can run no more jobs."""
        try:
            return await self._run(job)
        except (JobAborted, Cancelled):
            return JobAborted()
        except EngineClosed:
            raise
        except ChoralError as error:
            return error
        except Exception as error:  # a bug must not fail the other jobs
            log.exception("internal error: please report it", extra={"job": job.id})
            return EngineError(f"internal error in Choral ({type(error).__name__}: {error}): please report it")

    async def _run(self, job: ActiveJob) -> Transcript:
        try:
            prepared = await self._prepare(job)
        except ChoralError:
            self._batches.join(job).leave(has_succeeded=False)
            raise
        finally:
            self._fetch_slots.release(job)
        batch = self._batches.join(job)
        transcript: Transcript | None = None
        try:
            with closing_in_thread(prepared.recording):
                await job.unless_aborted(self._batches.wait_for(batch))
                transcript = await self._transcribe(job, prepared, batch)
        finally:
            batch.leave(has_succeeded=transcript is not None)
        return transcript

    async def _prepare(self, job: ActiveJob) -> Prepared:
        audio = job.request.audio
        if audio.kind == "blob":
            async with self._blob_slots:
                blob = await job.unless_aborted(self._retry.call(lambda: self._queue.read_blob(audio.location)))
                if not blob:
                    raise AudioNotFound(f"the audio of {audio.name} has expired in Redis: submit it again")
                prepared = await self._decode(job, blob)
        else:
            inline, job.audio = job.audio, b""
            prepared = await self._decode(job, inline if audio.kind == "inline" else audio.location)
        job.fetch_s, job.decode_s = prepared.fetch_s, prepared.decode_s
        job.duration_s = prepared.recording.duration
        return prepared

    async def _decode(self, job: ActiveJob, audio: str | bytes) -> Prepared:
        future = self._prep.submit(audio, loudness=job.request.options.loudness)
        return await job.unless_aborted(asyncio.wrap_future(future))

    async def _transcribe(self, job: ActiveJob, prepared: Prepared, batch: JobBatch) -> Transcript:
        def set_progress(done_s: float, total_s: float) -> None:
            job.done_s = done_s

        def transcribe() -> Transcript:
            return self._model.transcribe(
                prepared.recording, job.request.options, on_progress=set_progress, priority=job.request.priority
            )

        await job.unless_aborted(self._engine_slots.acquire())
        started_s = time.monotonic()
        try:
            job.phase = "engine"
            batch.enter_engine()
            prepared.recording.cancel_event = job.cancel_reads
            return await job.unless_aborted(run_in_thread(transcribe, f"job-{job.id}"))
        finally:
            job.engine_s = time.monotonic() - started_s
            self._engine_slots.release()
