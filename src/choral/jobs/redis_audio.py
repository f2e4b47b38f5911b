"""The audio of a job in Redis: its URL or path, or a temporary file with the bytes that were uploaded."""

from __future__ import annotations

import asyncio
from typing import IO

from choral.audio.spool import cannot_store, temporary_file
from choral.common.aio import run_in_thread
from choral.errors import AudioNotFound
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import JobQueue
from choral.jobs.redis_retry import RedisRetry
from choral.serving.input_sources import OpenFile

MAX_BLOBS = 2  # at once: each is in memory as a whole until it is in a file


class RedisAudio:
    def __init__(self, queue: JobQueue, retry: RedisRetry) -> None:
        self._queue, self._retry = queue, retry
        self._blob_slots = asyncio.Semaphore(MAX_BLOBS)

    async def open(self, job: ActiveJob) -> OpenFile | str:
        audio = job.request.audio
        if audio.kind not in ("blob", "inline"):
            return audio.location
        file = temporary_file()
        try:
            if audio.kind == "inline":
                inline, job.audio = job.audio, b""
                store(file, inline)
            else:
                await self._copy_blob(job, file)
        except BaseException:
            file.close()
            raise
        return OpenFile("the given bytes", file)

    async def _copy_blob(self, job: ActiveJob, file: IO[bytes]) -> None:
        audio = job.request.audio
        async with self._blob_slots:
            blob = await self._retry.call(lambda: self._queue.read_blob(audio.location))
            if not blob:
                raise AudioNotFound(f"the audio of {audio.name} has expired in Redis: submit it again")
            await run_in_thread(lambda: store(file, blob), "blob")


def store(file: IO[bytes], audio: bytes) -> None:
    try:
        file.write(audio)
        file.flush()
    except OSError as error:
        raise cannot_store(error) from error
