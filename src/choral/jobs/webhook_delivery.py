"""The message that tells what became of a job: its body, its signature, and one attempt to deliver it.

    Choral-Signature: t=1763200000,v1=<hex of HMAC-SHA256(secret, "1763200000." + body)>
    Idempotency-Key: <job id>, and for a job that was retried by hand <job id>.2 and so on

An answer of 4xx other than 408 and 429 says that the receiver does not want it, and an address that the guard refuses
is never asked: both are final. When to try again is for the caller to say, with `next_attempt`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choral.common.aio import run_in_thread
from choral.common.backoff import backoff_s
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url

if TYPE_CHECKING:
    from choral.jobs.metrics import WorkerMetrics
    from choral.jobs.redis_retry import RedisRetry
    from choral.jobs.settings import WorkerSettings
    from choral.jobs.worker_queue import DueWebhook, WorkerQueue

log = logging.getLogger("choral.jobs")
MAX_TRIES = 10
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


def webhook_body(record: JobRecord, result: bytes | None, link: str) -> bytes:
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


def post(url: str, body: bytes, key: str, guard: SsrfGuard, secret: str, timeout_s: float) -> Answer:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if secret:
        headers["Choral-Signature"] = signature(secret, body, int(time.time()))
    abort_handle = AbortHandle()
    try:
        with (
            abort_handle.abort_after(timeout_s),
            open_url(
                url, headers=headers, timeout_s=timeout_s, body=body, guard=guard, abort_handle=abort_handle
            ) as response,
        ):
            return Answer(response.status, None, is_final=True)
    except ForbiddenError as error:
        return Answer(None, str(error), is_final=True)
    except (RefusedError, UnreachableError) as error:
        status = error.status
        is_final = status is not None and 400 <= status < 500 and status not in _TRY_AGAIN
        text = f"no answer in {timeout_s:g} s" if abort_handle.is_aborted else str(error)
        return Answer(status, text, is_final, getattr(error, "wait_s", 0.0))


def next_attempt(answer: Answer, n_tries: int, retry_s: float) -> tuple[str, float]:
    """delivered, failed, or pending and how long to wait before the next try."""
    if answer.error is None:
        return "delivered", 0.0
    if answer.is_final or n_tries >= MAX_TRIES:
        return "failed", 0.0
    return "pending", min(max(backoff_s(n_tries, retry_s), answer.wait_s), LONGEST_PAUSE_S)


AT_ONCE = 16
EVERY_S = 1.0
LEASE_MORE_S = 20.0  # than an answer may take: to write down what came of it


class Webhooks:
    def __init__(
        self,
        ledger: WorkerQueue,
        steady: RedisRetry,
        settings: WorkerSettings,
        guard: SsrfGuard,
        secret: str,
        metrics: WorkerMetrics,
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
        body = webhook_body(record, result, self._settings.result_link)
        key = webhook.job_id if webhook.round == 1 else f"{webhook.job_id}.{webhook.round}"
        answer = await run_in_thread(
            lambda: post(webhook.callback, body, key, self._guard, self._secret, self._settings.webhook_s), "webhook"
        )
        attempts = (*record.webhook_attempts, WebhookAttempt(time.time(), answer.status, answer.error))
        outcome, delay_s = next_attempt(answer, len(attempts), self._settings.webhook_retry_s)
        self._metrics.webhooks.labels(outcome).inc()
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, answer.error, extra={"job": webhook.job_id})
        await self._steady.through(lambda: self._ledger.webhook_told(webhook, attempts, outcome, delay_s))
