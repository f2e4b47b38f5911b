"""The queue in Redis as a worker uses it: receive and start jobs, renew leases, store outcomes, lease webhooks.

Every method is one script or command that may be repeated, and raises the errors of the Redis library. Those for one
job raise `UsageError` if its record is damaged, because repeating them would not help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from choral.errors import ChoralError, UsageError
from choral.jobs import scripts
from choral.jobs.active_job import AbortReason, ActiveJob
from choral.jobs.job_queue import JobQueue
from choral.jobs.job_states import State, error_fields
from choral.jobs.queue_store import Delivery, DueWebhook
from choral.jobs.record import JobRecord, WorkerStatus, transcript_to_json
from choral.jobs.redis_connection import damage_errors
from choral.jobs.redis_keys import GROUP
from choral.jobs.request import JobRequest
from choral.options import Priority
from choral.transcript import Transcript

GONE_AFTER_S = 15  # without a heartbeat, a worker is no longer listed
CONSUMER_IDLE_MS = 3_600_000
POSTPONE_S = 2.0  # until a webhook is due again that may not be sent now
MAX_LEASE_ROUNDS = 64  # of one search for webhooks that may be sent


@dataclass(frozen=True)
class StreamEntry:
    """A stream entry that was delivered to this worker."""

    priority: Priority
    id: str
    job_id: str


class WorkerQueue:
    """The `QueueStore` of a worker. Other workers have the same queue, so jobs and webhooks are leased."""

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

    async def fail(self, job: ActiveJob, state: State, error: ChoralError | None, delay_s: float = 0.0) -> str:
        timings = json.dumps(asdict(job.timings))
        stored_error = ("", "") if error is None else error_fields(error)
        return await self._store(scripts.FAIL, job.id, self.worker, state, *stored_error, timings, delay_s)

    async def reject(self, entry: StreamEntry, error: ChoralError) -> str:
        """Fail a job that cannot be read."""
        return await self._store(scripts.REJECT, entry.job_id, entry.priority, entry.id, *error_fields(error))

    async def requeue(self, job: ActiveJob, max_crashes: int = 0) -> str:
        return await self._store(scripts.REQUEUE, job.id, self.worker, job.entry_id, max_crashes)

    async def requeue_entry(self, entry: StreamEntry) -> str:
        """Put back an entry that this worker received, and may have started."""
        return await self._store(scripts.REQUEUE, entry.job_id, self.worker, entry.id, 0)

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

    async def lease_webhooks(
        self, n_max: int, lease_s: float, may_send: Callable[[DueWebhook], bool] = lambda _: True
    ) -> list[DueWebhook]:
        """Those that `may_send` refuses are due again soon, so that others behind them pass."""
        leased: list[DueWebhook] = []
        for _ in range(MAX_LEASE_ROUNDS):
            n_wanted = n_max - len(leased)
            reply = await self.jobs.run(scripts.LEASE_WEBHOOKS, n_wanted, lease_s)
            words = [word.decode(errors="replace") for word in reply]
            due = [DueWebhook(*each) for each in zip(words[::3], words[1::3], words[2::3], strict=True)]
            accepted = [webhook for webhook in due if may_send(webhook)]
            leased += accepted
            if postponed := [webhook.job_id for webhook in due if webhook not in accepted]:
                await self.jobs.run(scripts.POSTPONE_WEBHOOKS, POSTPONE_S, *postponed)
            if len(due) < n_wanted or len(leased) == n_max:
                break
        return leased

    async def ended_job(self, job_id: str) -> tuple[JobRecord, bytes | None] | None:
        [record] = await self.jobs.records([job_id])
        if record is None or not record.has_ended:
            return None
        return record, await self.jobs.result(job_id)

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
