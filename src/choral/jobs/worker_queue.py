"""What a worker does in Redis: takes jobs, says that it is alive, and tells what became of each job it had.

Every method is one script or command, may be repeated, and raises the Redis library's own errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from choral.errors import ChoralError
from choral.jobs import scripts
from choral.jobs.active_job import ActiveJob, Reason
from choral.jobs.job_queue import PRIORITIES, JobQueue
from choral.jobs.record import WebhookAttempt, WorkerStatus, transcript_to_json
from choral.jobs.redis_keys import GROUP
from choral.jobs.request import JobRequest
from choral.types import Priority, Transcript

GONE_AFTER_S = 15  # without a word a worker is no longer shown
CONSUMER_IDLE_MS = 3_600_000


@dataclass(frozen=True)
class StreamEntry:
    """A place in a queue that was given to this worker."""

    priority: Priority
    id: str
    job_id: str


@dataclass(frozen=True)
class DueWebhook:
    job_id: str
    callback: str
    round: int


class WorkerQueue:
    def __init__(self, store: JobQueue, worker: str) -> None:
        self.store, self.worker = store, worker

    # --- taking ---

    async def read(self, priorities: Sequence[Priority], most: int, block_s: float | None = None) -> list[StreamEntry]:
        """Entries that nobody has, at most so many of each; with `block_s` it waits for the first."""
        names = {self.store.keys.queue(priority): priority for priority in priorities}
        found = await self.store.redis.xreadgroup(
            GROUP, self.worker, dict.fromkeys(names, ">"), most, None if block_s is None else int(block_s * 1000)
        )
        return [
            StreamEntry(names[queue.decode()], entry.decode(), fields[b"id"].decode())
            for queue, entries in found or ()
            for entry, fields in entries
        ]

    async def claim(self, most: int, idle_s: float) -> list[StreamEntry]:
        """Entries of workers that were not heard of for so long."""
        claimed: list[StreamEntry] = []
        for priority in PRIORITIES:
            if len(claimed) < most:
                answer = await self.store.redis.xautoclaim(
                    self.store.keys.queue(priority), GROUP, self.worker, int(idle_s * 1000), count=most - len(claimed)
                )
                found = [(entry, fields) for entry, fields in answer[1] if fields]
                claimed += [StreamEntry(priority, entry.decode(), fields[b"id"].decode()) for entry, fields in found]
        return claimed

    async def begin(self, entry: StreamEntry, max_crashes: int) -> ActiveJob | str:
        """The job to work on, or what became of it instead: over, cancelled or dead."""
        answer = await self.store.run(scripts.BEGIN, entry.job_id, entry.priority, entry.id, self.worker, max_crashes)
        if answer[0] != b"begun":
            return str(answer[0].decode())
        _, request, audio, attempts, crashes, queued_s = answer
        return ActiveJob(JobRequest.from_json(request), audio, int(attempts), float(queued_s), int(crashes))

    # --- telling ---

    async def succeed(self, job: ActiveJob, transcript: Transcript) -> str:
        """stored, again (it was there already) or late (it ended in another way before)."""
        return await self._tell(
            scripts.SUCCEED,
            job.id,
            self.worker,
            transcript_to_json(transcript),
            json.dumps(asdict(job.timings)),
            transcript.duration,
        )

    async def fail(self, job: ActiveJob, state: str, error: ChoralError | None, delay_s: float = 0.0) -> str:
        """For good, or `waiting` for the next try after `delay_s`."""
        kind = "" if error is None else type(error).__name__
        text = "" if error is None else str(error)
        timings = json.dumps(asdict(job.timings))
        return await self._tell(scripts.FAIL, job.id, self.worker, state, text, kind, timings, delay_s)

    async def refuse(self, entry: StreamEntry, error: ChoralError) -> str:
        """A job that was begun and cannot even be read."""
        return await self._tell(
            scripts.FAIL, entry.job_id, self.worker, "failed", str(error), type(error).__name__, "{}", 0.0
        )

    async def hand_back(self, job: ActiveJob) -> str:
        return await self._tell(scripts.HAND_BACK, job.id, self.worker)

    async def beat(self, status: WorkerStatus, jobs: Sequence[ActiveJob]) -> dict[str, Reason]:
        """Says that worker and jobs are well; the answer names jobs that are to be given up."""
        told: list[str | float] = []
        for job in jobs:
            duration_s: str | float = "" if job.duration_s is None else job.duration_s
            told += [job.id, job.phase, job.done_s, duration_s]
        answer = await self.store.run(scripts.BEAT, self.worker, status.to_json(), GONE_AFTER_S, *told)
        words = [word.decode() for word in answer]
        return dict(zip(words[::2], words[1::2], strict=True))

    async def promote(self) -> int:
        return int(await self.store.run(scripts.PROMOTE))

    async def repair(self) -> int:
        """After a queue was lost: makes it anew, and puts the jobs back that should be in it."""
        await self.store.create_groups()
        return int(await self.store.run(scripts.REPAIR))

    async def sweep(self) -> None:
        await self.store.run(scripts.SWEEP, CONSUMER_IDLE_MS)

    async def leave(self) -> None:
        """The worker ends and has nothing in hand any more."""
        await self.store.redis.zrem(self.store.keys.single("workers"), self.worker)
        await self.store.redis.delete(self.store.keys.worker(self.worker))

    # --- webhooks ---

    async def take_webhooks(self, most: int, lease_s: float) -> list[DueWebhook]:
        answer = await self.store.run(scripts.TAKE_WEBHOOKS, most, lease_s)
        words = [word.decode() for word in answer]
        return [DueWebhook(words[i], words[i + 1], int(words[i + 2])) for i in range(0, len(words), 3)]

    async def webhook_told(
        self, webhook: DueWebhook, attempts: Sequence[WebhookAttempt], outcome: str, delay_s: float
    ) -> str:
        told = json.dumps([asdict(attempt) for attempt in attempts])
        return await self._tell(scripts.WEBHOOK_TOLD, webhook.job_id, webhook.round, told, outcome, delay_s)

    async def _tell(self, script: scripts.Script, *arguments: str | float) -> str:
        return str((await self.store.run(script, *arguments)).decode())
