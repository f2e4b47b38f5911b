"""One job from the queue to its outcome: its audio is prepared, waits for the engine's room, and is transcribed.

Whatever goes wrong becomes the outcome of this job alone. A job that is no longer wanted leaves at once, wherever it
is; what still works on it stops when it next looks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from choral.audio.recording import Cancelled
from choral.common.aio import run_in_thread
from choral.errors import AudioNotFound, ChoralError, EngineClosed, EngineError
from choral.jobs.active_job import ActiveJob, JobAborted
from choral.jobs.batches import BatchFormer, JobBatch
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_retry import RedisRetry
from choral.types import Transcript

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import Prepared, PrepPool

log = logging.getLogger("choral.jobs")
BLOBS_AT_ONCE = 2  # each is in memory as a whole until it is decoded
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Succeeded:
    transcript: Transcript


@dataclass(frozen=True)
class Failed:
    error: ChoralError


@dataclass(frozen=True)
class GivenUp:
    """For the reason that the job holds."""


Outcome = Succeeded | Failed | GivenUp


class JobRunner:
    def __init__(
        self, model: Model, prep: PrepPool, store: JobQueue, steady: RedisRetry, batches: BatchFormer, size: int
    ) -> None:
        self._model, self._prep, self._store, self._steady = model, prep, store, steady
        self._batches = batches
        self._engine_room = asyncio.Semaphore(size)
        self._blob_room = asyncio.Semaphore(BLOBS_AT_ONCE)

    async def run(self, job: ActiveJob) -> Outcome:
        try:
            return Succeeded(await self._transcript(job))
        except (JobAborted, Cancelled):
            return GivenUp()
        except EngineClosed:
            raise  # the whole worker is of no more use
        except ChoralError as error:
            return Failed(error)
        except Exception as error:  # a mistake of ours must not take the other jobs along
            log.exception("a mistake in Choral: please report it", extra={"job": job.id})
            return Failed(EngineError(f"a mistake in Choral ({type(error).__name__}: {error}): please report it"))

    async def _transcript(self, job: ActiveJob) -> Transcript:
        try:
            prepared = await self._prepared(job)
        except ChoralError:
            self._batches.join(job).leave(has_succeeded=False)
            raise
        batch = self._batches.join(job)
        transcript: Transcript | None = None
        try:
            with prepared.recording:
                await or_abort(job, self._batches.ready(batch))
                transcript = await self._heard(job, prepared, batch)
        finally:
            batch.leave(has_succeeded=transcript is not None)
        return transcript

    async def _prepared(self, job: ActiveJob) -> Prepared:
        audio = job.request.audio
        if audio.kind == "blob":
            async with self._blob_room:
                blob = await or_abort(job, self._steady.through(lambda: self._blob(job)))
                prepared = await self._decoded(job, blob)
        else:
            inline, job.audio = job.audio, b""
            prepared = await self._decoded(job, inline if audio.kind == "inline" else audio.place)
        job.fetch_s, job.decode_s = prepared.fetch_s, prepared.decode_s
        job.duration_s = prepared.recording.duration
        return prepared

    async def _decoded(self, job: ActiveJob, audio: str | bytes) -> Prepared:
        future = self._prep.submit(audio, loudness=job.request.options.loudness)
        return await or_abort(job, asyncio.wrap_future(future))

    async def _blob(self, job: ActiveJob) -> bytes:
        data = b"".join([piece async for piece in self._store.read_blob(job.request.audio.place)])
        if not data:
            raise AudioNotFound(f"the audio of {job.request.audio.name} has run out in Redis: submit it again")
        return data

    async def _heard(self, job: ActiveJob, prepared: Prepared, batch: JobBatch) -> Transcript:
        await or_abort(job, self._engine_room.acquire())
        try:
            job.phase = "engine"
            batch.enter_engine()
            started_s = time.monotonic()
            prepared.recording.cancel_event = job.stop_reading
            return await or_abort(job, run_in_thread(lambda: self._transcribe(job, prepared), f"job-{job.id}"))
        finally:
            job.engine_s = time.monotonic() - started_s
            self._engine_room.release()

    def _transcribe(self, job: ActiveJob, prepared: Prepared) -> Transcript:
        def move(done_s: float, total_s: float) -> None:
            job.done_s = done_s

        return self._model.transcribe(
            prepared.recording, job.request.options, on_progress=move, priority=job.request.priority
        )


async def or_abort(job: ActiveJob, work: Awaitable[Answer]) -> Answer:
    """What the work gives; raises `JobAborted` as soon as the job is not wanted any more, and cancels the work."""
    task = asyncio.ensure_future(work)
    unwanted = asyncio.ensure_future(job.unwanted.wait())
    try:
        await asyncio.wait({task, unwanted}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise JobAborted
    finally:
        task.cancel()
        unwanted.cancel()
