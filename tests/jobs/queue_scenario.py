"""A client and two workers on a real Redis, for tests of the transitions of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import PRIORITIES, JobQueue
from choral.jobs.queue_store import Delivery
from choral.jobs.record import JobRecord, WebhookAttempt, WorkerStatus
from choral.jobs.redis_connection import connect
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.request import AudioRef, JobRequest
from choral.jobs.worker_queue import StreamEntry, WorkerQueue
from choral.options import Priority, TranscribeOptions
from choral.transcript import Segment, Transcript, Word

SEGMENT = Segment(0, 0, 0.0, 2.5, " Äther.", (1, 2), 0.0, -0.25, 1.1, 0.01, (Word(" Äther.", 0.1, 0.5, 0.75),))
TRANSCRIPT = Transcript(" Äther.", (SEGMENT,), "de", 0.9, 2.5, warnings=("noisy",))
STATUS = WorkerStatus(
    name="one", host="here", model="tiny", device="cpu", started_at=0.0, in_prep=0, in_engine=0, succeeded=0,
    failed=0, audio_per_s=0.0, busy_share=0.0, is_stopping=False,
)  # fmt: skip
CALLBACK = "http://receiver.example.org/done"
INLINE = AudioRef("inline", "", "talk.mp3")
DELIVERED = Delivery((WebhookAttempt(1.0, 200, None),), "delivered", 0.0)


class QueueScenario:
    """A client and two workers."""

    def __init__(self, url: str) -> None:
        self.redis = connect(url)
        self.keys = RedisKeys()
        self.jobs = JobQueue(self.redis, self.keys)
        self.one, self.two = WorkerQueue(self.jobs, "one"), WorkerQueue(self.jobs, "two")

    async def submit(
        self,
        job_id: str = "job",
        priority: Priority = "interactive",
        callback: str | None = None,
        keep_s: int = 3600,
        audio: AudioRef = INLINE,
    ) -> str:
        options = TranscribeOptions(language="de", temperature=(0.0, 0.5))
        request = JobRequest(
            id=job_id, audio=audio, options=options, priority=priority, callback=callback, keep_s=keep_s
        )
        return await self.jobs.submit(request, b"\0\xff" if audio.kind == "inline" else b"", 3)

    async def submit_blob(self, job_id: str = "job", **settings: Any) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"RIFF"
            yield b"data"

        await self.jobs.write_blob("blob", chunks(), 8)
        return await self.submit(job_id, audio=AudioRef("blob", "blob", "talk.mp3"), **settings)

    async def start(self, queue: WorkerQueue) -> ActiveJob:
        started = await self.start_any(queue)
        assert isinstance(started, ActiveJob), started
        return started

    async def start_any(self, queue: WorkerQueue) -> ActiveJob | str:
        """A waiting job, or one of another worker."""
        entries = await queue.read(PRIORITIES, 1) or await queue.claim("interactive", 1, 0.0)
        return await queue.start(entries[0], 2)

    async def start_entry(self, queue: WorkerQueue, entry: StreamEntry) -> ActiveJob:
        started = await queue.start(entry, 2)
        assert isinstance(started, ActiveJob), started
        return started

    async def record(self, job_id: str = "job") -> JobRecord:
        found = (await self.jobs.records([job_id]))[0]
        assert found is not None
        return found

    async def n_entries(self) -> int:
        return sum([await self.redis.xlen(self.keys.queue(priority)) for priority in PRIORITIES])


RunScenario = Callable[[Callable[[QueueScenario], Awaitable[None]]], None]
