"""The job worker: fetches jobs while it has capacity, runs them concurrently, and writes their outcomes.

Everything runs in one event loop: a fetch loop, one task per job, the heartbeat, and webhook delivery. Jobs run in the
runtime's processes. While Redis is unreachable, active jobs finish and their
outcomes are kept until they can be written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from choral.common.aio import cancel_tasks, run_in_thread
from choral.errors import EngineClosed, EngineError, QueueFull
from choral.jobs.active_job import ActiveJob
from choral.jobs.batches import BatchFormer
from choral.jobs.fetch_slots import FetchSlots
from choral.jobs.heartbeat import Heartbeat
from choral.jobs.job_fetcher import JobFetcher
from choral.jobs.job_queue import JobQueue
from choral.jobs.job_runner import JobEnvironment, JobRunner
from choral.jobs.job_states import RetryPolicy
from choral.jobs.metrics import WorkerMetrics
from choral.jobs.outcome_writer import OutcomeWriter
from choral.jobs.redis_audio import RedisAudio
from choral.jobs.redis_connection import RedisError
from choral.jobs.redis_retry import RedisRetry
from choral.jobs.settings import WorkerSettings
from choral.jobs.webhook_delivery import WebhookDelivery, WebhookSender
from choral.jobs.worker_queue import WorkerQueue
from choral.remote.ssrf_guard import SsrfGuard
from choral.serving.async_requests import AsyncRequests

if TYPE_CHECKING:
    from choral.api import Model
    from choral.serving.runtime import Runtime

log = logging.getLogger("choral.jobs")
FETCH_WAIT_S = 1.0  # duration of a blocking read, and so the delay until a stop is noticed


def new_worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def _loop_error(name: str, error: BaseException | None) -> EngineError:
    return EngineError(f"{name} has stopped ({error!r}), so this worker ends: start it again, and report this")


class Worker:
    def __init__(
        self,
        queue: JobQueue,
        model: Model,
        runtime: Runtime,
        settings: WorkerSettings,
        *,
        redis_address: str,
        name: str | None = None,
        webhook_secret: str = "",
        metrics: WorkerMetrics | None = None,
    ) -> None:
        """`redis_address` is for log messages, without the password."""
        self._settings, self._jobs, self._model = settings, queue, model
        self._is_stopping = asyncio.Event()
        self._failure: EngineError | None = None
        metrics = metrics or WorkerMetrics()
        n_concurrent = settings.batch_size or model.requests_at_once
        self._queue = WorkerQueue(queue, name or new_worker_name())
        self._retry = retry = RedisRetry(self._queue, redis_address)
        self._fetch_slots = fetch_slots = FetchSlots(runtime.settings.fetches, runtime.settings.n_fetches_per_host)
        self._fetcher = JobFetcher(self._queue, retry, settings, metrics, fetch_slots)
        batches = BatchFormer(n_concurrent, settings.batch_wait_s, metrics)
        environment = JobEnvironment(
            open_audio=RedisAudio(queue, retry).open,
            transcribe=AsyncRequests(runtime).transcribe,
            fetch_slots=fetch_slots,
            max_running=n_concurrent + (settings.prep_ahead or n_concurrent),
            has_engine_ended=self._end_with_engine,
            on_open=batches.enter,
            on_leave=batches.leave,
        )
        policy = RetryPolicy(settings.max_attempts, settings.max_crashes, settings.retry_s)
        outcomes = OutcomeWriter(self._queue, policy, metrics)
        self._runner = JobRunner(environment, outcomes, retry)
        self._heartbeat = Heartbeat(self._queue, retry, model, runtime, self._runner.active, outcomes.totals, metrics)
        sender = WebhookSender(
            SsrfGuard(runtime.settings.limits.allowed_hosts or ()),
            webhook_secret,
            timeout_s=settings.webhook_s,
            retry_s=settings.webhook_retry_s,
            result_link=settings.result_link,
        )
        self._webhooks = WebhookDelivery(self._queue, retry, sender, metrics)

    def stop(self) -> None:
        """Fetch no more jobs, finish what is possible within `drain_s`, and put the rest back into the queue."""
        self._is_stopping.set()
        self._runner.has_changed.set()

    async def run(self, *, is_burst: bool = False) -> None:
        """Run until stopped; in burst mode, until the queue is empty.

        A loop that ends by itself stops the worker too, and its error is raised: the jobs go to other workers, and the
        service manager can start this one again.
        """
        loops = [
            self._start_loop(self._heartbeat.run(), "the heartbeat"),
            self._start_loop(self._webhooks.run(), "webhook delivery"),
        ]
        try:
            await self._fetch_jobs(is_burst=is_burst)
            await self._drain()
        finally:
            await cancel_tasks(loops)
            await self._runner.close()
        await self._sign_off()
        if self._failure is not None:
            raise self._failure

    def _start_loop(self, loop: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                self._fail(_loop_error(name, task.exception()), task.exception())

        task = asyncio.create_task(loop, name=name)
        task.add_done_callback(check)
        return task

    def _fail(self, failure: EngineError, cause: BaseException | None = None) -> None:
        """Stop, because this worker can run no more jobs; the first failure is raised by `run`."""
        if self._failure is None:
            self._failure = failure
            log.critical("%s", failure, exc_info=cause)
        self.stop()

    def _end_with_engine(self, error: EngineClosed) -> bool:
        self._fail(error)
        return True

    async def _fetch_jobs(self, *, is_burst: bool) -> None:
        """Fetch jobs until stopped; in burst mode, until the queue is empty."""
        try:
            await self._until_stopped(self._jobs.create_groups)
            while not self._is_stopping.is_set():
                if not self._model.is_working:
                    await self._until_stopped(self._test_engine)
                    continue
                if self._runner.capacity <= 0:
                    self._runner.has_changed.clear()
                    await self._runner.has_changed.wait()
                    continue
                await self._until_stopped(
                    lambda: self._fetcher.fetch(max(1, self._runner.capacity), FETCH_WAIT_S, self._start)
                )
                if is_burst and not self._runner.active and await self._is_all_done():
                    return
        except Exception as error:  # a bug: the jobs that are running can still end
            self._fail(_loop_error("fetching jobs", error), error)

    def _start(self, job: ActiveJob) -> None:
        if self._is_stopping.is_set():  # received while the stop was requested: put it back
            job.abort("drain")
        self._runner.start(job)

    async def _test_engine(self) -> None:
        """The engine fails at everything: unless a self-test passes, hand the jobs back and end."""
        try:
            await run_in_thread(self._model.self_test, "self-test")
        except QueueFull:  # try again
            await asyncio.sleep(FETCH_WAIT_S)
        except EngineClosed as error:  # the jobs in the engine get the same error
            self._fail(error)
        except EngineError as error:
            self._fail(EngineError(f"{self._model.failure}; a self-test failed too, so this worker ends"), error)
            self._runner.abort_all("drain")

    async def _until_stopped(self, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat a call until Redis answers; returns soon after a stop, even if Redis is unreachable."""
        calling = asyncio.create_task(self._retry.call(call))
        stopping = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait({calling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # Let a read that is under way finish: entries that Redis has delivered would wait to be claimed.
            await asyncio.wait({calling}, timeout=2 * FETCH_WAIT_S)
            if calling.done():
                calling.result()
        finally:
            await cancel_tasks([calling, stopping])

    async def _is_all_done(self) -> bool:
        counts = await self._retry.call(self._jobs.counts)
        return counts.is_all_done

    async def _drain(self) -> None:
        """Let jobs in the engine finish within `drain_s`; put the others back at once, for other workers.

        If the engine has ended, jobs in it get its error, also those that have reported nothing yet.
        """
        self._heartbeat.is_stopping = True
        is_engine_closed = isinstance(self._failure, EngineClosed)
        for job in self._runner.active.values():
            if job.phase == "prep" and (job in self._fetch_slots or not is_engine_closed):
                job.abort("drain")
        await self._runner.is_idle_within(self._settings.drain_s)
        if n_left := await self._runner.close():
            log.error("Redis is unreachable: another worker will run %d unfinished jobs again", n_left)

    async def _sign_off(self) -> None:
        try:
            async with asyncio.timeout(FETCH_WAIT_S):
                await self._fetcher.requeue_received()
                await self._queue.sign_off()
        except (RedisError, TimeoutError):
            log.warning("Redis is unreachable at exit: this worker stays listed for some seconds")
