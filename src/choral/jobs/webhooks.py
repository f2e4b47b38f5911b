"""Telling the outside world: a signed POST for every job that has ended and has a callback.

An answer of 2xx ends it. Anything else is tried again, ten times over about an hour, unless it is final (`notice`). A
worker that dies in between leaves the webhook due: it is sent again, with the same key.
"""

from __future__ import annotations

import asyncio
import logging
import time

from choral.jobs.ledger import DueWebhook, Ledger
from choral.jobs.metrics import Metrics
from choral.jobs.notice import body_of, post, verdict
from choral.jobs.record import WebhookAttempt
from choral.jobs.settings import WorkerSettings
from choral.jobs.steady import Steady
from choral.jobs.tasks import in_thread
from choral.remote.guard import Guard

log = logging.getLogger("choral.jobs")
AT_ONCE = 16
EVERY_S = 1.0
LEASE_MORE_S = 20.0  # than an answer may take: to write down what came of it


class Webhooks:
    def __init__(
        self, ledger: Ledger, steady: Steady, settings: WorkerSettings, guard: Guard, secret: str, metrics: Metrics
    ) -> None:
        self._ledger, self._steady, self._settings, self._metrics = ledger, steady, settings, metrics
        self._guard, self._secret = guard, secret

    async def run(self) -> None:
        """Sends what is due, until it is cancelled."""
        lease_s = self._settings.webhook_s + LEASE_MORE_S
        while True:
            due = await self._steady.through(lambda: self._ledger.take_webhooks(AT_ONCE, lease_s))
            await asyncio.gather(*(self._send(webhook) for webhook in due))
            if len(due) < AT_ONCE:
                await asyncio.sleep(EVERY_S)

    async def _send(self, webhook: DueWebhook) -> None:
        store = self._ledger.store
        record = (await self._steady.through(lambda: store.records([webhook.job_id])))[0]
        if record is None:
            return
        result = await self._steady.through(lambda: store.result(webhook.job_id))
        body = body_of(record, result, self._settings.result_link)
        key = webhook.job_id if webhook.round == 1 else f"{webhook.job_id}.{webhook.round}"
        answer = await in_thread(
            lambda: post(webhook.callback, body, key, self._guard, self._secret, self._settings.webhook_s), "webhook"
        )
        attempts = (*record.webhook_attempts, WebhookAttempt(time.time(), answer.status, answer.error))
        outcome, delay_s = verdict(answer, len(attempts), self._settings.webhook_retry_s)
        self._metrics.webhooks.labels(outcome).inc()
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, answer.error, extra={"job": webhook.job_id})
        await self._steady.through(lambda: self._ledger.webhook_told(webhook, attempts, outcome, delay_s))
