"""Tells the callbacks of jobs that have ended; what could not be delivered stays due, also over a restart."""

from __future__ import annotations

import asyncio
import time

from choral.jobs.record import JobRecord
from choral.jobs.webhook_delivery import WebhookSender
from choral.remote.ssrf_guard import SsrfGuard
from choral.server.jobs.async_table import AsyncTable

AT_ONCE = 16
EVERY_S = 1.0


class Callbacks:
    def __init__(self, disk: AsyncTable, allowed_hosts: tuple[str, ...], secret: str) -> None:
        self._disk, self._sender = disk, WebhookSender(SsrfGuard(allowed_hosts), secret)

    async def run(self) -> None:
        """Sends what is due, until it is cancelled."""
        while True:
            due = await self._disk.retry_until_written(lambda table: table.due_webhooks(AT_ONCE))
            await asyncio.gather(*(self._send(record) for record in due))
            if len(due) < AT_ONCE:
                await asyncio.sleep(EVERY_S)

    async def _send(self, record: JobRecord) -> None:
        result = await self._disk.do(lambda table: table.result(record.id))
        sent = await self._sender.send(record, None if result is None else result.encode())
        due_at = time.time() + sent.delay_s if sent.outcome == "pending" else None
        await self._disk.retry_until_written(
            lambda table: table.record_webhook(record.id, sent.attempts, sent.outcome, due_at)
        )
