"""The queue in Redis as producers and observers use it: submit, cancel, retry, delete and read jobs.

Methods do not wait or retry, and raise the errors of the Redis library.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from choral.errors import UsageError
from choral.jobs import scripts
from choral.jobs.job_states import DAY_S
from choral.jobs.record import FIELDS, JobRecord, WorkerStatus, read_record
from choral.jobs.redis_connection import Redis, RedisError, ResponseError, damage_errors, is_damaged_record
from choral.jobs.redis_keys import GROUP, RedisKeys
from choral.jobs.request import JobRequest
from choral.jobs.scripts import Script
from choral.options import Priority

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
CHUNK_BYTES = 4 * 2**20  # of a blob, per command
BLOB_KEEP_S = 7 * DAY_S
LIST_BATCH = 50  # records per command of a list, each of up to some 100 kB
Fields = Sequence[bytes | None] | RedisError  # the values of a record, or why they could not be read
UPLOAD_KEEP_S = 600  # after each chunk: the audio of a client that dies before it submits is not kept for days


@dataclass(frozen=True)
class QueueCounts:
    waiting: dict[Priority, int]  # queued, not yet with a worker
    held: int  # with a worker, dead or alive
    delayed: int  # waiting for a retry
    webhooks: int  # undelivered
    dead: int
    ended: int  # and not yet expired; includes the dead ones

    @property
    def is_all_done(self) -> bool:
        return not (sum(self.waiting.values()) or self.held or self.delayed or self.webhooks)


class JobQueue:
    def __init__(self, redis: Redis, keys: RedisKeys) -> None:
        self.redis, self.keys = redis, keys

    async def run(self, script: Script, *arguments: str | bytes | float) -> Any:
        return await script.run(self.redis, self.keys.prefix, *arguments)

    async def create_groups(self) -> None:
        await self.run(scripts.CREATE_GROUPS)

    # --- changing jobs ---

    async def submit(
        self, request: JobRequest, audio: bytes, queue_limit: int, blob_keep_s: float = BLOB_KEEP_S
    ) -> str:
        """Returns new, known, full or, if the blob is gone, expired."""
        blob = request.audio.location if request.audio.kind == "blob" else ""
        reply: bytes = await self.run(
            scripts.SUBMIT,
            request.id,
            request.to_json(),
            request.priority,
            request.callback or "",
            request.keep_s,
            audio,
            blob,
            queue_limit,
            blob_keep_s,
        )
        return reply.decode()

    async def cancel(self, job_id: str) -> str | None:
        """Returns the state after the call; running: its worker aborts it soon. None: no such job."""
        with damage_errors():
            return _text(await self.run(scripts.CANCEL, job_id))

    async def retry(self, job_id: str) -> str | None:
        """Returns the state before the call; only a job that ended without a result is queued again.

        Returns no_audio if its audio was deleted when it ended.
        """
        with damage_errors():
            return _text(await self.run(scripts.RETRY, job_id))

    async def delete(self, job_id: str) -> str | None:
        """Returns the state before the call; only an ended job is deleted."""
        with damage_errors():
            return _text(await self.run(scripts.DELETE, job_id))

    # --- blobs ---

    async def write_blob(self, name: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """Each chunk is written at its offset, so that repeating a command is harmless.

        The blob expires after `UPLOAD_KEEP_S` unless a job that refers to it is submitted.
        """
        offset = 0
        async for chunk in chunks:
            await self.run(scripts.WRITE_BLOB, name, offset, chunk, size_bytes, UPLOAD_KEEP_S)
            offset += len(chunk)

    async def read_blob(self, name: str) -> bytes:
        """Empty if the blob has expired."""
        chunks: list[bytes] = []
        offset = 0
        while chunk := await self.redis.getrange(self.keys.blob(name), offset, offset + CHUNK_BYTES - 1):
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    async def delete_blob(self, name: str) -> None:
        await self.redis.delete(self.keys.blob(name))

    # --- reading ---

    async def records(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """None: no such job. Raises `UsageError` for one that this version cannot read."""
        replies = await self._read_fields(job_ids)
        return [_record(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]

    async def _read_fields(self, job_ids: Sequence[str]) -> list[Fields]:
        if not job_ids:
            return []
        async with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(self.keys.job(job_id), list(FIELDS))
            replies: list[Fields] = await pipe.execute(raise_on_error=False)
            return replies

    async def result(self, job_id: str) -> bytes | None:
        stored: bytes | None = await self.redis.get(self.keys.result(job_id))
        return stored

    async def newest(self, limit: int, *, only_dead: bool = False) -> list[JobRecord]:
        """Without the longest options: see `JobRequest.from_json`."""
        key = self.keys.single("dead" if only_dead else "index")
        job_ids = [job_id.decode(errors="replace") for job_id in await self.redis.zrevrange(key, 0, limit - 1)]
        records: list[JobRecord] = []
        for start in range(0, len(job_ids), LIST_BATCH):
            batch = job_ids[start : start + LIST_BATCH]
            records += await asyncio.to_thread(_readable_records, batch, await self._read_fields(batch))
        return records

    async def last_event_id(self) -> str:
        newest = await self.redis.xrevrange(self.keys.single("events"), count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def events_after(self, event_id: str, block_s: float) -> tuple[str, set[str]]:
        """Wait for events; returns the last event's id and the ids of jobs whose state changed."""
        streams = await self.redis.xread({self.keys.single("events"): event_id}, count=1000, block=int(block_s * 1000))
        entries = streams[0][1] if streams else []
        job_ids = {fields[b"id"].decode() for _, fields in entries}
        return (entries[-1][0].decode() if entries else event_id), job_ids

    async def counts(self) -> QueueCounts:
        async with self.redis.pipeline(transaction=False) as pipe:
            for priority in PRIORITIES:
                pipe.xlen(self.keys.queue(priority))
            for name in ("delayed", "webhooks", "dead", "expiries"):
                pipe.zcard(self.keys.single(name))
            lengths = await pipe.execute()
        pending = [await self._pending(priority) for priority in PRIORITIES]
        waiting = {name: lengths[i] - pending[i] for i, name in enumerate(PRIORITIES)}
        return QueueCounts(waiting, sum(pending), *lengths[len(PRIORITIES) :])

    async def _pending(self, priority: Priority) -> int:
        try:
            return int((await self.redis.xpending(self.keys.queue(priority), GROUP))["pending"])
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            return 0  # no worker has ever connected

    async def workers(self) -> list[WorkerStatus]:
        """Workers with a recent heartbeat."""
        names = await self.redis.zrange(self.keys.single("workers"), 0, -1)
        statuses = [await self.redis.get(self.keys.worker(name.decode())) for name in names]
        return [WorkerStatus.from_json(status) for status in statuses if status]


def _record(job_id: str, reply: Fields, *, is_brief: bool = False) -> JobRecord | None:
    if isinstance(reply, RedisError):
        if is_damaged_record(reply):
            raise UsageError(f"the record of this job cannot be read ({reply}): submit it again")
        raise reply
    record = read_record(reply, is_brief=is_brief)
    if record is not None and record.id != job_id:
        raise UsageError(f"the record of this job cannot be read (it is that of job {record.id}): submit it again")
    return record


def _readable_records(job_ids: Sequence[str], replies: Sequence[Fields]) -> list[JobRecord]:
    """For a list: without records that cannot be read, so that it shows the others."""
    records = []
    for job_id, reply in zip(job_ids, replies, strict=True):
        with contextlib.suppress(UsageError):
            records.append(_record(job_id, reply, is_brief=True))
    return [record for record in records if record is not None]


def _text(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode()
