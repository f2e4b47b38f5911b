"""Submit jobs, wait for them and fetch their results: `AsyncClient`; `sync_client.Client` is the same without `await`.

    client = choral.jobs.Client("redis://localhost:6379")
    job = client.submit("talk.mp3", language="en")
    print(client.wait(job).text)

A local file is uploaded; of a URL, or with `by_path` of a file on storage that workers share, only the name is sent.
Submitting a `job_id` a second time does nothing. Errors of Redis are raised as `RedisUnavailable`.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from choral.errors import JobNotFound, JobNotReady, JobTimeout, QueueFull, RedisUnavailable, UsageError
from choral.jobs.event_watcher import EventWatcher
from choral.jobs.job_queue import JobQueue, QueueCounts
from choral.jobs.job_states import ENDED
from choral.jobs.record import JobRecord, WorkerStatus, job_not_found, transcript_from_json
from choral.jobs.redis_connection import (
    RedisError,
    ResponseError,
    connect,
    redact_redis_url,
    redis_errors,
    resolve_redis_url,
)
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.request import JobRequest, new_id, require_id
from choral.jobs.settings import ClientSettings
from choral.jobs.uploads import Upload, open_upload
from choral.options import Priority, TranscribeOptions
from choral.transcript import Transcript

AudioToSend = str | os.PathLike[str] | bytes | bytearray | BinaryIO
T = TypeVar("T")
OnRecord = Callable[[JobRecord], None]
POLL_S = 5.0  # while waiting, in case an event was missed
PROGRESS_S = 1.0


class AsyncClient:
    """Bound to one event loop. Use it in an `async with`, or close it."""

    def __init__(self, url: str | None = None, settings: ClientSettings | None = None) -> None:
        """Without a URL, use the one in CHORAL_REDIS, or redis://localhost:6379."""
        url = resolve_redis_url(url)
        self.address = redact_redis_url(url)  # for messages: without the password
        self._settings = settings or ClientSettings()
        self._redis = connect(url)
        self._queue = JobQueue(self._redis, RedisKeys(self._settings.namespace))
        self._watcher = EventWatcher(self._queue)

    async def submit(
        self,
        /,
        audio: AudioToSend,
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "interactive",
        callback: str | None = None,
        job_id: str | None = None,
        by_path: bool = False,
        name: str | None = None,
        align: str | None = None,
        **option_values: Any,
    ) -> str:
        """Returns the job's id. Give options as `TranscribeOptions` or by name: `language="en"`.

        `align` is a text whose words get the times at which they are spoken, instead of a transcription.
        """
        options = _resolve_options(options, option_values)
        with open_upload(audio, self._settings, by_path=by_path, name=name) as upload:
            request = JobRequest(
                id=job_id if job_id is not None else new_id(),
                audio=upload.audio,
                options=options,
                priority=priority,
                callback=callback,
                keep_s=self._settings.keep_s,
                align=align,
            )
            request.check_callback()
            await self._call(self._send(request, upload))
        return request.id

    async def _send(self, request: JobRequest, upload: Upload) -> None:
        if upload.blob is None:
            outcome = await self._queue.submit(request, upload.inline, self._settings.queue_limit)
        elif (await self._queue.records([request.id]))[0] is not None:
            return  # submitted already
        else:
            outcome = await self._send_with_blob(request, upload)
        if outcome == "full":
            raise QueueFull(
                f"{self._settings.queue_limit} {request.priority} jobs are waiting already: try again later"
            )
        if outcome == "expired":
            raise RedisUnavailable(f"Redis at {self.address} deleted the audio before the job was stored: try again")

    async def _send_with_blob(self, request: JobRequest, upload: Upload) -> str:
        """Delete the blob unless a job refers to it, or may do so because the response was lost; then it expires."""
        outcome = "refused"
        try:
            await self._queue.write_blob(upload.audio.location, upload.chunks(), upload.size_bytes)
            outcome = "unknown"
            outcome = await self._queue.submit(request, b"", self._settings.queue_limit, self._settings.blob_keep_s)
        except ResponseError:
            outcome = "refused"
            raise
        finally:
            if outcome not in ("new", "unknown"):
                with suppress(RedisError):  # it expires in any case
                    await self._queue.delete_blob(upload.audio.location)
        return outcome

    async def _call(self, work: Awaitable[T]) -> T:
        """Await a call of the queue; errors of Redis become `RedisUnavailable`."""
        with redis_errors(self.address):
            return await work

    async def show(self, job_id: str) -> JobRecord:
        return (await self.show_all([job_id]))[0]

    async def show_all(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        for job_id in job_ids:
            require_id(job_id)
        records = await self._call(self._queue.records(job_ids))
        return [_found(record, job_id) for record, job_id in zip(records, job_ids, strict=True)]

    async def result(self, job_id: str) -> Transcript:
        """The transcript of a job that succeeded; otherwise raises the `JobError` for its state."""
        record = await self.show(job_id)
        record.require_success()
        stored = await self._call(self._queue.result(job_id))
        if stored is None:
            raise JobNotFound(f"the result of job {job_id} has expired: submit it again")
        return transcript_from_json(stored)

    async def wait(
        self, job_id: str, *, timeout_s: float | None = None, on_record: OnRecord | None = None
    ) -> Transcript:
        """Wait for the transcript; `on_record` is called with the job's record once a second."""
        await self.wait_all([job_id], timeout_s=timeout_s, on_record=on_record)
        return await self.result(job_id)

    async def wait_all(
        self, job_ids: Sequence[str], *, timeout_s: float | None = None, on_record: OnRecord | None = None
    ) -> Sequence[JobRecord]:
        """Wait until all these jobs have ended, in whatever state, and return their records."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        ended: dict[str, JobRecord] = {}
        async with self._watcher.watch(job_ids) as changed:
            while True:
                open_ids = [job_id for job_id in job_ids if job_id not in ended]
                changed.clear()
                for record in await self.show_all(open_ids):
                    if record.has_ended:
                        ended[record.id] = record
                    if on_record is not None:
                        on_record(record)
                if len(ended) == len(set(job_ids)):
                    return [ended[job_id] for job_id in job_ids]
                await _wait(changed, POLL_S if on_record is None else PROGRESS_S, deadline_s)

    async def cancel(self, job_id: str) -> JobRecord:
        """Remove a job from the queue, or have its worker abort it; a job that has ended is unchanged."""
        require_id(job_id)
        await self._call(self._queue.cancel(job_id))
        return await self.show(job_id)

    async def retry(self, job_id: str) -> JobRecord:
        """Queue a job again that ended without a result and whose audio still exists."""
        require_id(job_id)
        state = await self._call(self._queue.retry(job_id))
        if state == "no_audio":
            raise JobNotReady(f"job {job_id} cannot be retried: its audio was deleted when it ended; submit it again")
        if state in ("queued", "running", "waiting", "succeeded"):
            raise JobNotReady(f"job {job_id} is {state}: only one that failed, died or was cancelled can be retried")
        return await self.show(job_id)

    async def delete(self, job_id: str) -> None:
        """Delete the record and result of a job that has ended, without waiting for them to expire."""
        require_id(job_id)
        state = await self._call(self._queue.delete(job_id))
        if state is None:
            _found(None, job_id)
        elif state not in ENDED:
            raise JobNotReady(f"job {job_id} is {state}: cancel it first")

    async def forget(self, job_id: str) -> None:
        """Deprecated name of `delete`."""
        warnings.warn("forget is deprecated: use delete", DeprecationWarning, stacklevel=2)
        await self.delete(job_id)

    async def list(self, limit: int = 50) -> Sequence[JobRecord]:
        """Jobs, newest first; those with long texts or lists among their options are shown without them."""
        return await self._call(self._queue.newest(limit))

    async def dead(self, limit: int = 50) -> Sequence[JobRecord]:
        """The dead-letter list: jobs whose every attempt failed, or whose workers crashed."""
        return await self._call(self._queue.newest(limit, only_dead=True))

    async def counts(self) -> QueueCounts:
        return await self._call(self._queue.counts())

    async def workers(self) -> Sequence[WorkerStatus]:
        return await self._call(self._queue.workers())

    async def close(self) -> None:
        await self._watcher.close()
        await self._redis.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _resolve_options(options: TranscribeOptions | None, values: dict[str, Any]) -> TranscribeOptions:
    from choral.model.languages import check_languages
    from choral.speakers.voice_options import options_by_name

    if options is not None and values:
        raise UsageError("give either options or single options by name, not both")
    options = options if options is not None else options_by_name(**values)
    check_languages(options)  # report an unknown one here, not in the worker
    return options


def _found(record: JobRecord | None, job_id: str) -> JobRecord:
    if record is None:
        raise job_not_found(job_id)
    return record


async def _wait(changed: asyncio.Event, timeout_s: float, deadline_s: float | None) -> None:
    left_s = float("inf") if deadline_s is None else deadline_s - time.monotonic()
    if left_s <= 0:
        raise JobTimeout("the job did not end within the timeout; it continues, so you can wait for it again")
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), min(timeout_s, left_s))
