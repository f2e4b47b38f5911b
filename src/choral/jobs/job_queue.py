"""What producers and everybody who watches do in Redis: submit, cancel, retry, and read. No policy, no waiting.

Everything raises the Redis library's own errors; the client and the worker decide what they mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from choral.jobs import scripts
from choral.jobs.record import FIELDS, JobRecord, WorkerStatus, read_record
from choral.jobs.redis_connection import Redis, ResponseError
from choral.jobs.redis_keys import GROUP, RedisKeys
from choral.jobs.request import JobRequest
from choral.jobs.scripts import Script
from choral.types import Priority

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
PIECE_BYTES = 4 * 2**20  # of a blob, in one command


@dataclass(frozen=True)
class QueueCounts:
    """How much there is of what."""

    waiting: dict[Priority, int]  # by priority: in the queue, with no worker yet
    held: int  # with a worker, dead or alive
    delayed: int
    webhooks: int
    dead: int
    ended: int  # remembered, dead ones too

    @property
    def is_all_done(self) -> bool:
        return not (sum(self.waiting.values()) or self.held or self.delayed or self.webhooks)


class JobQueue:
    def __init__(self, redis: Redis, keys: RedisKeys) -> None:
        self.redis, self.keys = redis, keys

    async def run(self, script: Script, *arguments: str | bytes | float) -> Any:
        return await script.run(self.redis, self.keys.prefix, *arguments)

    # --- producers ---

    async def submit(self, request: JobRequest, audio: bytes, queue_limit: int) -> str:
        """new, known or full."""
        blob = request.audio.place if request.audio.kind == "blob" else ""
        answer: bytes = await self.run(
            scripts.SUBMIT,
            request.id,
            request.to_json(),
            request.priority,
            request.callback or "",
            request.keep_s,
            audio,
            blob,
            queue_limit,
        )
        return answer.decode()

    async def write_blob(self, name: str, pieces: AsyncIterator[bytes], keep_s: int) -> None:
        """Each piece to its place, so that one whose answer was lost may be sent again."""
        key, offset = self.keys.blob(name), 0
        async for piece in pieces:
            await self.redis.setrange(key, offset, piece)
            await self.redis.expire(key, keep_s)
            offset += len(piece)

    async def drop_blob(self, name: str) -> None:
        await self.redis.delete(self.keys.blob(name))

    async def read_blob(self, name: str) -> AsyncIterator[bytes]:
        """Its pieces; none where it has run out."""
        offset = 0
        while piece := await self.redis.getrange(self.keys.blob(name), offset, offset + PIECE_BYTES - 1):
            yield piece
            offset += len(piece)

    async def cancel(self, job_id: str) -> str | None:
        """The state it is in now; running: its worker was told."""
        return _text(await self.run(scripts.CANCEL, job_id))

    async def retry(self, job_id: str) -> str | None:
        """The state it was in; only one that ended without a result starts anew."""
        return _text(await self.run(scripts.RETRY, job_id))

    async def delete(self, job_id: str) -> str | None:
        """The state it was in; only one that has ended is deleted."""
        return _text(await self.run(scripts.DELETE, job_id))

    # --- everybody ---

    async def records(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        if not job_ids:
            return []
        async with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(self.keys.job(job_id), list(FIELDS))
            return [read_record(values) for values in await pipe.execute()]

    async def result(self, job_id: str) -> bytes | None:
        stored: bytes | None = await self.redis.get(self.keys.result(job_id))
        return stored

    async def newest(self, limit: int, *, only_dead: bool = False) -> list[JobRecord]:
        """Records, the newest first; those that have run out are not there any more."""
        key = self.keys.single("dead" if only_dead else "index")
        found = await self.redis.zrevrange(key, 0, limit - 1)
        records = await self.records([job_id.decode() for job_id in found])
        return [record for record in records if record is not None]

    async def last_event(self) -> str:
        newest = await self.redis.xrevrange(self.keys.single("events"), count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def events_after(self, last: str, block_s: float) -> tuple[str, set[str]]:
        """The ids of jobs that changed their state since, and where to go on; waits for the first of them."""
        found = await self.redis.xread({self.keys.single("events"): last}, count=1000, block=int(block_s * 1000))
        entries = found[0][1] if found else []
        ids = {fields[b"id"].decode() for _, fields in entries}
        return (entries[-1][0].decode() if entries else last), ids

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
            return 0  # no worker was ever here

    async def workers(self) -> list[WorkerStatus]:
        """Those that were heard of lately."""
        names = await self.redis.zrange(self.keys.single("workers"), 0, -1)
        told = [await self.redis.get(self.keys.worker(name.decode())) for name in names]
        return [WorkerStatus.from_json(each) for each in told if each]

    async def create_groups(self) -> None:
        for priority in PRIORITIES:
            try:
                await self.redis.xgroup_create(self.keys.queue(priority), GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):  # it is there already
                    raise


def _text(answer: bytes | None) -> str | None:
    return None if answer is None else answer.decode()
