"""Webhooks: a signed POST for every ended job with a callback, following https://www.standardwebhooks.com.

    webhook-id: msg_<hash of the job's id and end>, the same for every attempt
    webhook-timestamp: 1763200000
    webhook-signature: v1,<base64 of HMAC-SHA256(key, "<id>.<timestamp>.<body>")>

A 2xx response ends the delivery. So does a 4xx response other than 408 and 429, and an address that the guard refuses.
Everything else is retried, up to ten attempts over about an hour. A sender that dies leaves the webhook due.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from choral.common.aio import cancel_tasks, run_in_thread
from choral.common.backoff import backoff_s
from choral.errors import UsageError
from choral.jobs.job_states import WEBHOOK_RETRY_S, WEBHOOK_S
from choral.jobs.queue_store import Delivery, DueWebhook, QueueStore, StoreRetry
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url
from choral.remote.urls import url_problem

if TYPE_CHECKING:
    from choral.jobs.metrics import JobMetrics

log = logging.getLogger("choral.jobs")
SECRET_PREFIX = "whsec_"
MAX_ATTEMPTS = 10
MAX_PAUSE_S = 3600.0
MAX_INLINE_BYTES = 256 * 1024  # of a result; a larger one is replaced by a link where there is one
MAX_CONCURRENT = 64
MAX_PER_HOST = 16  # at once: receivers that do not respond leave places for others
MAX_ERROR_CHARACTERS = 500  # of an attempt's error, which may quote the receiver
MIN_POLL_S, POLL_S = 0.1, 1.0
LEASE_MARGIN_S = 20.0  # beyond the response timeout: time to record the attempt
_RETRYABLE_4XX = (408, 429)


def signing_key(secret: str) -> bytes:
    """The bytes after `whsec_`, decoded from base64; a secret without that prefix is used as it is."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    encoded = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise UsageError(f"the webhook secret begins with {SECRET_PREFIX} but is not followed by base64: correct it")
    return key


def sign(key: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    digest = hmac.new(key, f"{webhook_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def webhook_id(record: JobRecord) -> str:
    """Stable over attempts and restarts; a job that is retried or submitted again gets a new one.

    Job ids are chosen by clients and may contain full stops, which the standard forbids here: hence the hash.
    """
    return f"msg_{hashlib.sha256(f'{record.id}:{record.ended_at!r}'.encode()).hexdigest()[:32]}"


def webhook_body(record: JobRecord, result: bytes | None, result_link: str = "") -> bytes:
    """The record as JSON, with the result, or a link to it if it is large and `result_link` is set."""
    fields: dict[str, object] = {
        "v": 1,
        "type": f"job.{record.state}",
        "timestamp": datetime.fromtimestamp(record.ended_at or 0.0, UTC).isoformat(timespec="milliseconds"),
        "id": record.id,
        "status": record.state,
        "audio": record.request.audio.name,
        "error": record.error,
        "result": None,
    }
    if result is not None and result_link and len(result) > MAX_INLINE_BYTES:
        fields["result_url"] = result_link.replace("{id}", record.id)
    elif result is not None:
        try:
            fields["result"] = json.loads(result)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the result of this job is damaged ({error}): submit it again") from error
    return json.dumps(fields, ensure_ascii=False).encode()


class WebhookSender:
    """Sends one attempt at a time; the caller stores the outcome and calls again when the next one is due."""

    def __init__(
        self,
        guard: SsrfGuard,
        secret: str,
        *,
        timeout_s: float = WEBHOOK_S,
        retry_s: float = WEBHOOK_RETRY_S,
        result_link: str = "",
    ) -> None:
        """`retry_s` is the pause before the second attempt; it doubles for each later one."""
        self._guard, self._secret, self._key = guard, secret, signing_key(secret)
        self.timeout_s, self._retry_s, self._result_link = timeout_s, retry_s, result_link

    async def send(self, record: JobRecord, result: bytes | None) -> Delivery:
        """Raises `UsageError` if the result is damaged."""
        response = await run_in_thread(lambda: self._post(record, result), "webhook")
        attempts = (*record.webhook_attempts, WebhookAttempt(time.time(), response.status, response.error))
        outcome, delay_s = next_attempt(response, len(attempts), self._retry_s)
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, response.error, extra={"job": record.id})
        return Delivery(attempts, outcome, delay_s)

    def _post(self, record: JobRecord, result: bytes | None) -> WebhookResponse:
        url = record.request.callback or ""  # another version may have stored what this one cannot read, or unchecked
        if problem := url_problem(url):
            return WebhookResponse(None, f"the callback is not a valid URL: {problem}", is_final=True)
        body = webhook_body(record, result, self._result_link)
        headers, abort_handle = self._headers(webhook_id(record), body), AbortHandle()
        try:
            with (
                abort_handle.abort_after(self.timeout_s),
                open_url(
                    url,
                    headers=headers,
                    timeout_s=self.timeout_s,
                    body=body,
                    guard=self._guard,
                    abort_handle=abort_handle,
                ) as response,
            ):
                return WebhookResponse(response.status, None, is_final=True)
        except ForbiddenError as error:
            return WebhookResponse(None, str(error), is_final=True)
        except (RefusedError, UnreachableError) as error:
            status = error.status
            is_final = status is not None and 400 <= status < 500 and status not in _RETRYABLE_4XX
            text = f"no response within {self.timeout_s:g} s" if abort_handle.is_aborted else str(error)
            return WebhookResponse(status, text[:MAX_ERROR_CHARACTERS], is_final, getattr(error, "wait_s", 0.0))

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "Idempotency-Key": message_id,  # deprecated: use webhook-id
        }
        if self._key:
            headers["webhook-signature"] = sign(self._key, message_id, timestamp, body)
            headers["Choral-Signature"] = _old_signature(self._secret, timestamp, body)
        return headers


def _old_signature(secret: str, timestamp: int, body: bytes) -> str:
    """Deprecated, sent for one more release: the value of the header `Choral-Signature`."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


@dataclass(frozen=True)
class WebhookResponse:
    status: int | None  # None: no response
    error: str | None  # None: delivered
    is_final: bool
    retry_after_s: float = 0.0


def next_attempt(response: WebhookResponse, n_attempts: int, retry_s: float) -> tuple[str, float]:
    """The outcome (delivered, failed or pending) and, if pending, the pause before the next attempt."""
    if response.error is None:
        return "delivered", 0.0
    if response.is_final or n_attempts >= MAX_ATTEMPTS:
        return "failed", 0.0
    return "pending", min(max(backoff_s(n_attempts, retry_s), response.retry_after_s), MAX_PAUSE_S)


class WebhookDelivery:
    """The background task that sends the due webhooks of a store."""

    def __init__(self, store: QueueStore, retry: StoreRetry, sender: WebhookSender, metrics: JobMetrics) -> None:
        self._store, self._retry, self._sender, self._metrics = store, retry, sender, metrics
        self._host_of: dict[asyncio.Task[None], str] = {}  # of each webhook that is being sent
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Webhooks are sent independently, so that a slow receiver delays only its own."""
        try:
            while True:
                self._has_ended.clear()
                for webhook in await self._retry.call(self._lease_due):
                    self._start(webhook)
                await asyncio.sleep(MIN_POLL_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_ended.wait(), POLL_S)
        finally:
            await cancel_tasks(list(self._host_of))

    async def _lease_due(self) -> Sequence[DueWebhook]:
        """As many as there are places for, in all and for each host."""
        n_at = Counter(self._host_of.values())

        def may_send(webhook: DueWebhook) -> bool:
            n_at[webhook.host] += 1
            return n_at[webhook.host] <= MAX_PER_HOST

        n_free = MAX_CONCURRENT - len(self._host_of)
        lease_s = self._sender.timeout_s + LEASE_MARGIN_S
        return await self._store.lease_webhooks(n_free, lease_s, may_send) if n_free else ()

    def _start(self, webhook: DueWebhook) -> None:
        def forget(task: asyncio.Task[None]) -> None:
            del self._host_of[task]
            self._has_ended.set()

        task = asyncio.create_task(self._deliver(webhook))
        self._host_of[task] = webhook.host
        task.add_done_callback(forget)

    async def _deliver(self, webhook: DueWebhook) -> None:
        """Whatever goes wrong with one webhook ends or delays that one alone."""
        attempts: tuple[WebhookAttempt, ...] = ()
        try:
            job = await self._retry.call(lambda: self._store.ended_job(webhook.job_id))
            if job is None:  # deleted, or retried since
                return
            attempts = job[0].webhook_attempts
            delivery = await self._sender.send(*job)
        except UsageError as error:  # its record or result cannot be read
            delivery = _failed(attempts, str(error))
        except Exception as error:  # a bug must not stop the other webhooks
            log.exception("internal error in a webhook: please report it", extra={"job": webhook.job_id})
            text = f"internal error in Choral ({type(error).__name__}: {error}): please report it"
            delivery = _failed(attempts, text)
        self._metrics.webhooks.labels(delivery.outcome).inc()
        try:
            await self._retry.call(lambda: self._store.record_webhook(webhook, delivery))
        except UsageError as error:
            log.error("the attempt could not be recorded: %s", error, extra={"job": webhook.job_id})


def _failed(attempts: tuple[WebhookAttempt, ...], error: str) -> Delivery:
    last = WebhookAttempt(time.time(), None, error[:MAX_ERROR_CHARACTERS])
    return Delivery((*attempts, last), "failed", 0.0)
