"""Tells the callbacks of jobs that have ended; what could not be delivered stays due, also over a restart."""

from __future__ import annotations

import asyncio
import logging
import time

from choral.common.aio import run_in_thread
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.jobs.webhook_delivery import next_attempt, post, webhook_body
from choral.remote.ssrf_guard import SsrfGuard
from choral.server.jobs.async_table import AsyncTable

log = logging.getLogger("choral.server")
AT_ONCE = 16
EVERY_S = 1.0
ANSWER_S = 10.0
RETRY_S = 7.0  # before the second try; with ten, each pause twice the last, an hour


class Callbacks:
    def __init__(self, disk: AsyncTable, allowed_hosts: tuple[str, ...], secret: str) -> None:
        self._disk, self._guard, self._secret = disk, SsrfGuard(allowed_hosts), secret

    async def run(self) -> None:
        """Sends what is due, until it is cancelled."""
        while True:
            due = await self._disk.retry_until_written(lambda table: table.due_webhooks(AT_ONCE))
            await asyncio.gather(*(self._send(record) for record in due))
            if len(due) < AT_ONCE:
                await asyncio.sleep(EVERY_S)

    async def _send(self, record: JobRecord) -> None:
        callback = record.request.callback
        assert callback is not None
        result = await self._disk.do(lambda table: table.result(record.id))
        body = webhook_body(record, None if result is None else result.encode(), link="")
        answer = await run_in_thread(
            lambda: post(callback, body, record.id, self._guard, self._secret, ANSWER_S), "job-callback"
        )
        attempts = (*record.webhook_attempts, WebhookAttempt(time.time(), answer.status, answer.error))
        outcome, delay_s = next_attempt(answer, len(attempts), RETRY_S)
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, answer.error, extra={"job": record.id})
        due_at = time.time() + delay_s if outcome == "pending" else None
        await self._disk.retry_until_written(lambda table: table.record_webhook(record.id, attempts, outcome, due_at))
