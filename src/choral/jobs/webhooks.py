"""Telling the outside world: a signed POST for every job that has ended and has a callback.

    Choral-Signature: t=1763200000,v1=<hex of HMAC-SHA256(secret, "1763200000." + body)>
    Idempotency-Key: <job id>, and for a job that was retried by hand <job id>.2 and so on

An answer of 2xx ends it. Anything else is tried again, ten times over about an hour; an answer of 4xx other than 408
and 429 says that the receiver does not want it, and an address that the guard refuses is never asked. A worker that
dies in between leaves the webhook due: it is sent again, with the same key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass

from choral.jobs.backoff import backoff_s
from choral.jobs.ledger import DueWebhook, Ledger
from choral.jobs.metrics import Metrics
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.jobs.settings import WorkerSettings
from choral.jobs.steady import Steady
from choral.jobs.tasks import in_thread
from choral.remote.guard import Guard
from choral.remote.lifeline import Lifeline
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url

log = logging.getLogger("choral.jobs")
MAX_TRIES = 10
AT_ONCE = 16
EVERY_S = 1.0
LEASE_MORE_S = 20.0  # than an answer may take: to write down what came of it
LONGEST_PAUSE_S = 3600.0
INLINE_BYTES = 256 * 1024  # of a result, where a link can be sent instead
_TRY_AGAIN = (408, 429)


@dataclass(frozen=True)
class Answer:
    status: int | None  # None: there was none
    error: str | None  # None: taken
    is_final: bool
    wait_s: float = 0.0  # that the receiver asked for


def signature(secret: str, body: bytes, at: int) -> str:
    """For receivers too: compare it with the header, and refuse what is old."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def body_of(record: JobRecord, result: bytes | None, link: str) -> bytes:
    fields: dict[str, object] = {
        "v": 1,
        "id": record.id,
        "status": record.state,
        "audio": record.request.audio.name,
        "error": record.error,
        "result": None,
    }
    if result is not None and link and len(result) > INLINE_BYTES:
        fields["result_url"] = link.replace("{id}", record.id)
    elif result is not None:
        fields["result"] = json.loads(result)
    return json.dumps(fields, ensure_ascii=False).encode()


def post(url: str, body: bytes, key: str, guard: Guard, secret: str, timeout_s: float) -> Answer:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if secret:
        headers["Choral-Signature"] = signature(secret, body, int(time.time()))
    lifeline = Lifeline()
    try:
        with (
            lifeline.lasting(timeout_s),
            open_url(url, headers=headers, timeout_s=timeout_s, body=body, guard=guard, lifeline=lifeline) as response,
        ):
            return Answer(response.status, None, is_final=True)
    except ForbiddenError as error:
        return Answer(None, str(error), is_final=True)
    except (RefusedError, UnreachableError) as error:
        status = error.status
        is_final = status is not None and 400 <= status < 500 and status not in _TRY_AGAIN
        text = f"no answer in {timeout_s:g} s" if lifeline.is_cut else str(error)
        return Answer(status, text, is_final, getattr(error, "wait_s", 0.0))


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
        outcome, delay_s = self._verdict(answer, len(attempts))
        self._metrics.webhooks.labels(outcome).inc()
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, answer.error, extra={"job": webhook.job_id})
        await self._steady.through(lambda: self._ledger.webhook_told(webhook, attempts, outcome, delay_s))

    def _verdict(self, answer: Answer, n_tries: int) -> tuple[str, float]:
        if answer.error is None:
            return "delivered", 0.0
        if answer.is_final or n_tries >= MAX_TRIES:
            return "failed", 0.0
        pause_s = backoff_s(n_tries, self._settings.webhook_retry_s)
        return "pending", min(max(pause_s, answer.wait_s), LONGEST_PAUSE_S)
