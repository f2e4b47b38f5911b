"""Submit jobs, follow them, and fetch what they gave: `AsyncClient` here, and `Client`, the same without `await`.

    client = choral.jobs.Client("redis://localhost:6379")
    job = client.submit("talk.mp3", language="en")
    print(client.wait(job).text)

A local file is sent along; by address, or with `by_path` on storage that workers share, only its name is. Submitting
twice under one `job_id` is submitting once. What Redis refuses is `RedisUnavailable`, and says why.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO

from choral.errors import JobNotFound, JobNotReady, JobTimeout, QueueFull, UsageError
from choral.jobs.event_watcher import EventWatcher
from choral.jobs.job_queue import JobQueue, QueueCounts
from choral.jobs.record import ENDED, JobRecord, WorkerStatus, transcript_from_json
from choral.jobs.redis_connection import RedisError, connect, redact_redis_url, redis_errors, resolve_redis_url
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.request import JobRequest, new_id, require_id
from choral.jobs.settings import ClientSettings
from choral.jobs.uploads import Upload, open_upload
from choral.types import Priority, TranscribeOptions, Transcript

AudioToSend = str | os.PathLike[str] | bytes | bytearray | BinaryIO
OnRecord = Callable[[JobRecord], None]
CHECK_EVERY_S = 5.0  # while waiting, should an event have been missed
TELL_EVERY_S = 1.0


class AsyncClient:
    """Use it in one event loop, in an `async with`, or close it."""

    def __init__(self, url: str | None = None, settings: ClientSettings | None = None) -> None:
        """Without an address it is the one in CHORAL_REDIS, or this machine's."""
        address = resolve_redis_url(url)
        self.shown = redact_redis_url(address)  # for messages: without the password
        self._settings = settings or ClientSettings()
        self._redis = connect(address)
        self._store = JobQueue(self._redis, RedisKeys(self._settings.namespace))
        self._watch = EventWatcher(self._store)

    async def submit(
        self,
        audio: AudioToSend,
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "interactive",
        callback: str | None = None,
        job_id: str | None = None,
        by_path: bool = False,
        name: str | None = None,
        **given: Any,
    ) -> str:
        """The id of the job. Options come as `TranscribeOptions` or by name: `language="en"`."""
        chosen = _options(options, given)
        with open_upload(audio, self._settings, by_path=by_path, name=name) as upload:
            request = JobRequest(
                id=job_id if job_id is not None else new_id(),
                audio=upload.audio,
                options=chosen,
                priority=priority,
                callback=callback,
                keep_s=self._settings.keep_s,
            )
            with redis_errors(self.shown):
                await self._send(request, upload)
        return request.id

    async def _send(self, request: JobRequest, upload: Upload) -> None:
        if upload.audio.kind == "blob":
            if (await self._store.records([request.id]))[0] is not None:
                return  # known already: nothing to send
            await self._send_blob(upload)
        answer = await self._store.submit(request, upload.inline, self._settings.queue_limit)
        if answer != "new" and upload.audio.kind == "blob":
            await self._store.drop_blob(upload.audio.place)
        if answer == "full":
            raise QueueFull(
                f"{self._settings.queue_limit} {request.priority} jobs are waiting already: try again later"
            )

    async def _send_blob(self, upload: Upload) -> None:
        try:
            await self._store.write_blob(upload.audio.place, upload.pieces(), self._settings.blob_keep_s)
        except BaseException:
            with suppress(RedisError):  # what cannot be dropped now runs out
                await self._store.drop_blob(upload.audio.place)
            raise

    async def show(self, job_id: str) -> JobRecord:
        return (await self.show_all([job_id]))[0]

    async def show_all(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        for job_id in job_ids:
            require_id(job_id)
        with redis_errors(self.shown):
            records = await self._store.records(job_ids)
        return [_found(record, job_id) for record, job_id in zip(records, job_ids, strict=True)]

    async def result(self, job_id: str) -> Transcript:
        """Of a job that succeeded; any other raises the `JobError` that fits its state."""
        record = await self.show(job_id)
        record.require_success()
        with redis_errors(self.shown):
            stored = await self._store.result(job_id)
        if stored is None:
            raise JobNotFound(f"the result of job {job_id} has run out: submit it again")
        return transcript_from_json(stored)

    async def wait(
        self, job_id: str, *, timeout_s: float | None = None, on_record: OnRecord | None = None
    ) -> Transcript:
        """The transcript, as soon as there is one. `on_record` is told how far the job is, once a second."""
        await self.wait_all([job_id], timeout_s=timeout_s, on_record=on_record)
        return await self.result(job_id)

    async def wait_all(
        self, job_ids: Sequence[str], *, timeout_s: float | None = None, on_record: OnRecord | None = None
    ) -> Sequence[JobRecord]:
        """The records of all these jobs when the last of them has ended, however it did."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        ended: dict[str, JobRecord] = {}
        async with self._watch.of(job_ids) as changed:
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
                await _pause(changed, CHECK_EVERY_S if on_record is None else TELL_EVERY_S, deadline_s)

    async def cancel(self, job_id: str) -> JobRecord:
        """Takes a job out of the queue, or tells its worker to stop; one that has ended stays as it is."""
        require_id(job_id)
        with redis_errors(self.shown):
            await self._store.cancel(job_id)
        return await self.show(job_id)

    async def retry(self, job_id: str) -> JobRecord:
        """Starts a job anew that ended without a result."""
        require_id(job_id)
        with redis_errors(self.shown):
            state = await self._store.retry(job_id)
        if state in ("queued", "running", "waiting", "succeeded"):
            raise JobNotReady(f"job {job_id} is {state}: only one that failed, died or was cancelled can be retried")
        return await self.show(job_id)

    async def delete(self, job_id: str) -> None:
        """Delete the record and result of a job that has ended, without waiting for them to expire."""
        require_id(job_id)
        with redis_errors(self.shown):
            state = await self._store.delete(job_id)
        if state is None:
            _found(None, job_id)
        elif state not in ENDED:
            raise JobNotReady(f"job {job_id} is {state}: cancel it first")

    async def forget(self, job_id: str) -> None:
        """Deprecated name of `delete`."""
        warnings.warn("forget is deprecated: use delete", DeprecationWarning, stacklevel=2)
        await self.delete(job_id)

    async def list(self, limit: int = 50) -> Sequence[JobRecord]:
        """The newest jobs first."""
        with redis_errors(self.shown):
            return await self._store.newest(limit)

    async def dead(self, limit: int = 50) -> Sequence[JobRecord]:
        """The dead-letter list: jobs whose every try failed, or that ended their workers."""
        with redis_errors(self.shown):
            return await self._store.newest(limit, only_dead=True)

    async def counts(self) -> QueueCounts:
        with redis_errors(self.shown):
            return await self._store.counts()

    async def workers(self) -> Sequence[WorkerStatus]:
        with redis_errors(self.shown):
            return await self._store.workers()

    async def close(self) -> None:
        await self._watch.close()
        await self._redis.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _options(options: TranscribeOptions | None, given: dict[str, Any]) -> TranscribeOptions:
    from choral.model.languages import to_code

    if options is not None and given:
        raise UsageError("give either options or single options by name, not both")
    chosen = options if options is not None else TranscribeOptions.of(**given)
    if chosen.language is not None:
        to_code(chosen.language)  # better known to the producer now than to the worker later
    return chosen


def _found(record: JobRecord | None, job_id: str) -> JobRecord:
    if record is None:
        raise JobNotFound(f"job {job_id} does not exist: check the id; jobs are forgotten some days after they ended")
    return record


async def _pause(changed: asyncio.Event, longest_s: float, deadline_s: float | None) -> None:
    left_s = float("inf") if deadline_s is None else deadline_s - time.monotonic()
    if left_s <= 0:
        raise JobTimeout("the job was not done in the time given; it goes on, so wait for it again")
    try:
        await asyncio.wait_for(changed.wait(), min(longest_s, left_s))
    except TimeoutError:
        return
