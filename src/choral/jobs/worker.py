"""A worker: takes jobs as it has room for them, works on them side by side, and tells what became of each.

Everything runs in one event loop: one task takes jobs, one a job works on it, one says that all are well, one sends
webhooks. Audio is prepared in the pool's processes and transcribed on threads. Redis may go away at any time: what is
in hand is finished, kept, and told when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

from choral.common.aio import cancel_tasks
from choral.errors import EngineClosed
from choral.jobs.active_job import ActiveJob
from choral.jobs.batches import BatchFormer
from choral.jobs.heartbeat import Heartbeat
from choral.jobs.job_fetcher import JobFetcher
from choral.jobs.job_queue import JobQueue
from choral.jobs.job_runner import GivenUp, JobRunner, Outcome
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.outcome_writer import OutcomeWriter
from choral.jobs.redis_connection import RedisError
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.settings import WorkerSettings
from choral.jobs.webhook_delivery import Webhooks
from choral.jobs.worker_queue import WorkerQueue
from choral.remote.ssrf_guard import SsrfGuard

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import PrepPool

log = logging.getLogger("choral.jobs")
TAKE_WAIT_S = 1.0  # how long a blocking read lasts, and so how soon a stop is noticed
LAST_WORDS_S = 5.0  # after the drain: for handing back


def new_worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


class Worker:
    def __init__(
        self,
        store: JobQueue,
        model: Model,
        prep: PrepPool,
        settings: WorkerSettings,
        *,
        shown: str,
        name: str | None = None,
        webhook_secret: str = "",
        metrics: WorkerMetrics | None = None,
    ) -> None:
        """`shown` is what messages call Redis."""
        self._settings, self._store = settings, store
        self._held: dict[str, ActiveJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        self._has_moved = asyncio.Event()  # a job has left, or a stop is wanted
        self._failure: EngineClosed | None = None
        metrics = metrics or WorkerMetrics()
        size = settings.batch_size or model.requests_at_once
        self._limit = size + (settings.prep_ahead or size)
        self._ledger = ledger = WorkerQueue(store, name or new_worker_name())
        self._steady = steady = RedisRetry(ledger, shown)
        self._intake = JobFetcher(ledger, steady, settings, metrics)
        self._telling = OutcomeWriter(ledger, settings, metrics)
        batches = BatchFormer(size, settings.batch_wait_s, metrics, holds=model.engine == "ctranslate2")
        self._runs = JobRunner(model, prep, store, steady, batches, size)
        self._pulse = Heartbeat(ledger, steady, model, prep, self._held, self._telling.tally, metrics)
        self._webhooks = Webhooks(
            ledger, steady, settings, SsrfGuard(prep.settings.allowed_hosts), webhook_secret, metrics
        )

    def stop(self) -> None:
        """Takes no more jobs, finishes what it can in `drain_s`, and hands back the rest."""
        self._is_stopping.set()
        self._has_moved.set()

    async def run(self, *, is_burst: bool = False) -> None:
        """Until it is stopped; a burst until nothing is left to do."""
        await self._steady.through(self._store.create_groups)
        async with asyncio.TaskGroup() as group:
            always = [group.create_task(self._pulse.run()), group.create_task(self._webhooks.run())]
            await self._take_on(group, is_burst=is_burst)
            await self._drain()
            await cancel_tasks([*always, *self._tasks])
        await self._say_goodbye()
        if self._failure is not None:
            raise self._failure

    async def _take_on(self, group: asyncio.TaskGroup, *, is_burst: bool) -> None:
        while not self._is_stopping.is_set():
            room = self._limit - len(self._held)
            if room <= 0:
                self._has_moved.clear()
                await self._has_moved.wait()
                continue
            jobs = await self._take(room)
            for job in jobs:
                if job.id not in self._held:
                    self._held[job.id] = job
                    task = group.create_task(self._work_on(job))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            if is_burst and not self._held and await self._is_all_done():
                return

    async def _take(self, room: int) -> list[ActiveJob]:
        """Jobs that came; none when a stop is wanted while Redis is away."""
        taking = asyncio.create_task(self._steady.through(lambda: self._intake.take(room, TAKE_WAIT_S)))
        stopping = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # A read that is under way is let finish: what it brings would otherwise lie until it is claimed.
            await asyncio.wait({taking}, timeout=2 * TAKE_WAIT_S)
            return taking.result() if taking.done() else []
        finally:
            await cancel_tasks([taking, stopping])

    async def _is_all_done(self) -> bool:
        counts = await self._steady.through(self._store.counts)
        return counts.is_all_done

    async def _work_on(self, job: ActiveJob) -> None:
        outcome: Outcome
        try:
            outcome = await self._runs.run(job)
        except EngineClosed as error:
            self._failure = error
            self.stop()
            job.give_up("drain")
            outcome = GivenUp()
        await self._steady.through(lambda: self._telling.tell(job, outcome))
        del self._held[job.id]
        self._has_moved.set()

    async def _drain(self) -> None:
        """What is in the engine may finish; the rest goes back to the queue at once, for others to take."""
        self._pulse.is_stopping = True
        for job in self._held.values():
            if job.phase == "prep":
                job.give_up("drain")
        if await self._is_empty_within(self._settings.drain_s):
            return
        for job in self._held.values():
            job.give_up("drain")
        if not await self._is_empty_within(LAST_WORDS_S):
            log.error("Redis could not be told of %d jobs: another worker will run them again", len(self._held))

    async def _is_empty_within(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self._held:
            self._has_moved.clear()
            try:
                await asyncio.wait_for(self._has_moved.wait(), deadline_s - time.monotonic())
            except TimeoutError:
                return False
        return True

    async def _say_goodbye(self) -> None:
        try:
            await asyncio.wait_for(self._ledger.leave(), TAKE_WAIT_S)
        except (RedisError, TimeoutError):
            log.warning("Redis is away at the end: this worker is shown for some seconds more")
