"""Delivers the webhooks of jobs that have ended; failed deliveries stay due, also across a restart.

Each delivery is a task of its own, and few go to one host at a time: a callback that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

from choral.common.aio import cancel_tasks
from choral.errors import JobNotFound
from choral.jobs.webhook_delivery import MAX_CONCURRENT, MAX_PER_HOST, WebhookSender
from choral.remote.urls import url_host
from choral.server.jobs.async_table import AsyncTable

MAX_SCANNED = 10_000  # due webhooks that are searched for those of idle hosts
MIN_POLL_S, POLL_S = 0.1, 1.0


class LocalWebhooks:
    def __init__(self, table: AsyncTable, sender: WebhookSender) -> None:
        self._table, self._sender = table, sender
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by job
        self._hosts: Counter[str] = Counter()  # deliveries in progress
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        """Send due webhooks until cancelled."""
        try:
            while True:
                self._has_ended.clear()
                for job_id, callback in await self._table.retry(lambda table: table.due_webhooks(MAX_SCANNED)):
                    self._start(job_id, url_host(callback))
                await asyncio.sleep(MIN_POLL_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_ended.wait(), POLL_S)
        finally:
            await cancel_tasks(self._tasks.values())

    def _start(self, job_id: str, host: str) -> None:
        if job_id in self._tasks or len(self._tasks) >= MAX_CONCURRENT or self._hosts[host] >= MAX_PER_HOST:
            return

        def forget(task: asyncio.Task[None]) -> None:
            del self._tasks[job_id]
            self._hosts[host] -= 1
            self._hosts += Counter()  # drops those at zero
            self._has_ended.set()

        self._hosts[host] += 1
        self._tasks[job_id] = asyncio.create_task(self._deliver(job_id))
        self._tasks[job_id].add_done_callback(forget)

    async def _deliver(self, job_id: str) -> None:
        try:
            record = await self._table.retry(lambda table: table.show(job_id))
        except JobNotFound:  # deleted since
            return
        if record.request.callback is None:  # another version stored a callback that this one cannot read
            await self._table.retry(lambda table: table.record_webhook(job_id, record.webhook_attempts, "failed", None))
            return
        result = await self._table.retry(lambda table: table.result(job_id))
        sent = await self._sender.send(record, None if result is None else result.encode())
        due_at = time.time() + sent.delay_s if sent.outcome == "pending" else None
        await self._table.retry(lambda table: table.record_webhook(job_id, sent.attempts, sent.outcome, due_at))
