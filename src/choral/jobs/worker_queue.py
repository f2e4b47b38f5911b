"""The queue in Redis as a worker uses it: receive and start jobs, renew leases, store outcomes, lease webhooks.

Every method is one script or command that may be repeated, and raises the errors of the Redis library. Those for one
job raise `UsageError` if its record is damaged, because repeating them would not help.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from choral.errors import ChoralError, UsageError
from choral.jobs import scripts
from choral.jobs.active_job import AbortReason, ActiveJob
from choral.jobs.job_queue import JobQueue
from choral.jobs.record import WorkerStatus, transcript_to_json
from choral.jobs.redis_connection import damage_errors
from choral.jobs.redis_keys import GROUP
from choral.jobs.request import JobRequest
from choral.remote.urls import url_host
from choral.types import Priority, Transcript

if TYPE_CHECKING:
    from choral.jobs.webhook_delivery import Delivery

MAX_ERROR_CHARACTERS = 2000  # messages may quote what a client or a remote server sent
GONE_AFTER_S = 15  # without a heartbeat, a worker is no longer listed
CONSUMER_IDLE_MS = 3_600_000


@dataclass(frozen=True)
class StreamEntry:
    """A stream entry that was delivered to this worker."""

    priority: Priority
    id: str
    job_id: str


@dataclass(frozen=True)
class DueWebhook:
    job_id: str
    round: str  # how often the job was retried by hand, plus one
    callback: str

    @property
    def host(self) -> str:
        return url_host(self.callback)


class WorkerQueue:
    def __init__(self, jobs: JobQueue, worker: str) -> None:
        self.jobs, self.worker = jobs, worker

    # --- receiving jobs ---

    async def read(self, priorities: Sequence[Priority], n_max: int, block_s: float | None = None) -> list[StreamEntry]:
        """New entries, at most `n_max` per priority; with `block_s`, wait for the first one."""
        priority_of = {self.jobs.keys.queue(priority): priority for priority in priorities}
        block_ms = None if block_s is None else int(block_s * 1000)
        streams = await self.jobs.redis.xreadgroup(GROUP, self.worker, dict.fromkeys(priority_of, ">"), n_max, block_ms)
        return [
            _stream_entry(priority_of[queue.decode()], entry, fields)
            for queue, entries in streams or ()
            for entry, fields in entries
        ]

    async def claim(self, priority: Priority, n_max: int, idle_s: float) -> list[StreamEntry]:
        """Take over entries of workers whose leases were not renewed for `idle_s`."""
        queue, idle_ms = self.jobs.keys.queue(priority), int(idle_s * 1000)
        _, entries, *_ = await self.jobs.redis.xautoclaim(queue, GROUP, self.worker, idle_ms, count=n_max)
        return [_stream_entry(priority, entry, fields) for entry, fields in entries if fields]

    async def start(self, entry: StreamEntry, max_crashes: int) -> ActiveJob | str:
        """The job to run, or what became of it instead: stale, cancelled or dead.

        Raises `UsageError` for a job that cannot be read; reject it.
        """
        arguments = (entry.job_id, entry.priority, entry.id, self.worker, max_crashes)
        with damage_errors():
            reply = await self.jobs.run(scripts.START, *arguments)
        if reply[0] != b"started":
            return str(reply[0].decode())
        _, text, audio, attempts, crashes, queued_s = reply
        request = JobRequest.from_json(text)
        try:
            if request.id != entry.job_id:
                raise ValueError(f"its request is that of job {request.id}")
            return ActiveJob(request, audio, int(attempts), float(queued_s), int(crashes), entry_id=entry.id)
        except ValueError as error:
            raise UsageError(f"the record of this job is damaged ({error}): submit it again") from error

    # --- outcomes: stored, duplicate or rejected ---

    async def succeed(self, job: ActiveJob, transcript: Transcript) -> str:
        timings = json.dumps(asdict(job.timings))
        return await self._store(
            scripts.SUCCEED, job.id, self.worker, transcript_to_json(transcript), timings, transcript.duration
        )

    async def fail(self, job: ActiveJob, state: str, error: ChoralError | None, delay_s: float = 0.0) -> str:
        """End the job in `state`, or let it wait `delay_s` for a retry if `state` is waiting."""
        timings = json.dumps(asdict(job.timings))
        return await self._store(scripts.FAIL, job.id, self.worker, state, *_error_fields(error), timings, delay_s)

    async def reject(self, entry: StreamEntry, error: ChoralError) -> str:
        """Fail a job that cannot be read."""
        return await self._store(scripts.REJECT, entry.job_id, entry.priority, entry.id, *_error_fields(error))

    async def requeue(self, job_id: str, entry_id: str, max_crashes: int = 0) -> str:
        """Put back a job that this worker started, or an entry that it received and did not start.

        With `max_crashes` the engine failed while it ran the job: a crash is counted, and the reply may be dead.
        """
        return await self._store(scripts.REQUEUE, job_id, self.worker, entry_id, max_crashes)

    async def defer(self, job_id: str, first_s: float, max_s: float) -> str:
        """Put back a job without counting an attempt: for `first_s`, and each time for twice as long."""
        return await self._store(scripts.DEFER, job_id, self.worker, first_s, max_s)

    # --- upkeep ---

    async def heartbeat(self, status: WorkerStatus, jobs: Sequence[ActiveJob]) -> dict[str, AbortReason]:
        """Renew the leases of these jobs; returns those to abort, with the reason."""
        progress: list[str | float] = []
        for job in jobs:
            duration_s: str | float = "" if job.duration_s is None else job.duration_s
            progress += [job.id, job.phase, job.done_s, duration_s]
        reply = await self.jobs.run(scripts.HEARTBEAT, self.worker, status.to_json(), GONE_AFTER_S, *progress)
        words = [word.decode() for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    async def promote_delayed(self) -> int:
        return int(await self.jobs.run(scripts.PROMOTE_DELAYED))

    async def rebuild(self) -> int:
        """Create lost streams again and queue the jobs that belong in them; returns how many."""
        await self.jobs.create_groups()
        return int(await self.jobs.run(scripts.REBUILD_QUEUE))

    async def remove_idle_consumers(self) -> None:
        await self.jobs.run(scripts.REMOVE_IDLE_CONSUMERS, CONSUMER_IDLE_MS)

    async def sign_off(self) -> None:
        """Remove this worker from the list; it must hold no jobs."""
        await self.jobs.redis.zrem(self.jobs.keys.single("workers"), self.worker)
        await self.jobs.redis.delete(self.jobs.keys.worker(self.worker))

    # --- webhooks ---

    async def lease_webhooks(self, n_max: int, lease_s: float) -> list[DueWebhook]:
        """Due webhooks; they become due again after `lease_s`."""
        reply = await self.jobs.run(scripts.LEASE_WEBHOOKS, n_max, lease_s)
        words = [word.decode(errors="replace") for word in reply]
        return [DueWebhook(*each) for each in zip(words[::3], words[1::3], words[2::3], strict=True)]

    async def postpone_webhooks(self, webhooks: Sequence[DueWebhook], delay_s: float) -> None:
        """Release leased webhooks that were not sent."""
        await self.jobs.run(scripts.POSTPONE_WEBHOOKS, delay_s, *(webhook.job_id for webhook in webhooks))

    async def record_webhook(self, webhook: DueWebhook, delivery: Delivery) -> str:
        attempts = json.dumps([asdict(attempt) for attempt in delivery.attempts])
        return await self._store(
            scripts.RECORD_WEBHOOK, webhook.job_id, webhook.round, attempts, delivery.outcome, delivery.delay_s
        )

    async def _store(self, script: scripts.Script, *arguments: str | float) -> str:
        with damage_errors():
            return str((await self.jobs.run(script, *arguments)).decode())


def _stream_entry(priority: Priority, entry_id: bytes, fields: Mapping[bytes, bytes]) -> StreamEntry:
    """An entry that Choral did not write has no job; starting it drops it."""
    return StreamEntry(priority, entry_id.decode(), fields.get(b"id", b"").decode(errors="replace"))


def _error_fields(error: ChoralError | None) -> tuple[str, str]:
    return ("", "") if error is None else (str(error)[:MAX_ERROR_CHARACTERS], type(error).__name__)
