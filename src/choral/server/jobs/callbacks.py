"""Delivers the webhooks of jobs that have ended; failed deliveries stay due, also across a restart."""

from __future__ import annotations

import asyncio
import time

from choral.jobs.record import JobRecord
from choral.jobs.webhook_delivery import WebhookSender
from choral.remote.ssrf_guard import SsrfGuard
from choral.server.jobs.async_table import AsyncTable

BATCH = 16
POLL_S = 1.0


class CallbackLoop:
    def __init__(self, table: AsyncTable, allowed_hosts: tuple[str, ...], secret: str) -> None:
        self._table, self._sender = table, WebhookSender(SsrfGuard(allowed_hosts), secret)

    async def run(self) -> None:
        """Send due webhooks until cancelled."""
        while True:
            due = await self._table.retry_until_written(lambda table: table.due_webhooks(BATCH))
            await asyncio.gather(*(self._send(record) for record in due))
            if len(due) < BATCH:
                await asyncio.sleep(POLL_S)

    async def _send(self, record: JobRecord) -> None:
        result = await self._table.run(lambda table: table.result(record.id))
        sent = await self._sender.send(record, None if result is None else result.encode())
        due_at = time.time() + sent.delay_s if sent.outcome == "pending" else None
        await self._table.retry_until_written(
            lambda table: table.record_webhook(record.id, sent.attempts, sent.outcome, due_at)
        )
