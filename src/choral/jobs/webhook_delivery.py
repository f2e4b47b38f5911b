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
import hashlib
import hmac
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from choral.common.aio import cancel_tasks, run_in_thread
from choral.common.backoff import backoff_s
from choral.errors import UsageError
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url
from choral.remote.urls import url_problem

if TYPE_CHECKING:
    from choral.jobs.metrics import WorkerMetrics
    from choral.jobs.redis_retry import RedisRetry
    from choral.jobs.settings import WorkerSettings
    from choral.jobs.worker_queue import DueWebhook, WorkerQueue

log = logging.getLogger("choral.jobs")
SECRET_PREFIX = "whsec_"
MAX_ATTEMPTS = 10
MAX_PAUSE_S = 3600.0
MAX_INLINE_BYTES = 256 * 1024  # of a result; a larger one is replaced by a link where there is one
MAX_CONCURRENT = 64
MAX_PER_HOST = 16  # at once: receivers that do not respond leave places for others
POSTPONE_S = 2.0  # until a webhook is tried again whose host has as many as it may
MAX_ERROR_CHARACTERS = 500  # of an attempt's error, which may quote the receiver
POLL_S = 1.0
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


@dataclass(frozen=True)
class Delivery:
    """The attempts so far, the last one included, and what comes next."""

    attempts: tuple[WebhookAttempt, ...]
    outcome: str  # delivered, failed, or pending: attempt it again after `delay_s`
    delay_s: float


class WebhookSender:
    """Sends one attempt at a time; the caller stores the outcome and calls again when the next one is due."""

    def __init__(
        self, guard: SsrfGuard, secret: str, *, timeout_s: float = 10.0, retry_s: float = 7.0, result_link: str = ""
    ) -> None:
        """`retry_s` is the pause before the second attempt; it doubles for each later one."""
        self._guard, self._secret, self._key = guard, secret, signing_key(secret)
        self._timeout_s, self._retry_s, self._result_link = timeout_s, retry_s, result_link

    async def send(self, record: JobRecord, result: bytes | None) -> Delivery:
        """Raises nothing: whatever goes wrong with one webhook ends or delays that one alone."""
        try:
            response = await run_in_thread(lambda: self._post(record, result), "webhook")
        except UsageError as error:  # of the job, whose result is damaged
            response = WebhookResponse(None, str(error)[:MAX_ERROR_CHARACTERS], is_final=True)
        except Exception as error:  # a bug must not stop the other webhooks
            log.exception("internal error in a webhook: please report it", extra={"job": record.id})
            response = WebhookResponse(None, internal_error_text(error), is_final=True)
        attempts = (*record.webhook_attempts, WebhookAttempt(time.time(), response.status, response.error))
        outcome, delay_s = next_attempt(response, len(attempts), self._retry_s)
        if outcome != "delivered":
            log.warning("webhook %s: %s", outcome, response.error, extra={"job": record.id})
        return Delivery(attempts, outcome, delay_s)

    def _post(self, record: JobRecord, result: bytes | None) -> WebhookResponse:
        assert record.request.callback is not None
        if problem := url_problem(record.request.callback):  # an older version may have stored it unchecked
            return WebhookResponse(None, f"the callback is not a valid URL: {problem}", is_final=True)
        body = webhook_body(record, result, self._result_link)
        url, headers, abort_handle = record.request.callback, self._headers(webhook_id(record), body), AbortHandle()
        try:
            with (
                abort_handle.abort_after(self._timeout_s),
                open_url(
                    url,
                    headers=headers,
                    timeout_s=self._timeout_s,
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
            text = f"no response within {self._timeout_s:g} s" if abort_handle.is_aborted else str(error)
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


def internal_error_text(error: Exception) -> str:
    return f"internal error in Choral ({type(error).__name__}: {error}): please report it"[:MAX_ERROR_CHARACTERS]


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
    """The worker's background task: sends due webhooks of all jobs in Redis."""

    def __init__(
        self,
        queue: WorkerQueue,
        retry: RedisRetry,
        settings: WorkerSettings,
        guard: SsrfGuard,
        secret: str,
        metrics: WorkerMetrics,
    ) -> None:
        self._queue, self._retry, self._metrics = queue, retry, metrics
        self._host_of: dict[asyncio.Task[None], str] = {}  # of each webhook that is being sent
        self._lease_s = settings.webhook_s + LEASE_MARGIN_S
        self._sender = WebhookSender(
            guard,
            secret,
            timeout_s=settings.webhook_s,
            retry_s=settings.webhook_retry_s,
            result_link=settings.result_link,
        )

    async def run(self) -> None:
        """Run until cancelled. Webhooks are sent independently, so that a slow receiver delays only its own."""
        try:
            while True:
                n_free = MAX_CONCURRENT - len(self._host_of)
                if not n_free:
                    await asyncio.wait(self._host_of, return_when=asyncio.FIRST_COMPLETED)
                elif await self._start_due(n_free) < n_free:
                    await asyncio.sleep(POLL_S)
        finally:
            await cancel_tasks(list(self._host_of))

    async def _start_due(self, n_max: int) -> int:
        """Start due webhooks; put those back whose host has as many as it may. Returns how many were due."""
        due = await self._retry.call(lambda: self._queue.lease_webhooks(n_max, self._lease_s))
        n_at = Counter(self._host_of.values())
        postponed = []
        for webhook in due:
            n_at[webhook.host] += 1
            if n_at[webhook.host] > MAX_PER_HOST:
                postponed.append(webhook)
            else:
                task = asyncio.create_task(self._deliver(webhook))
                self._host_of[task] = webhook.host
                task.add_done_callback(self._host_of.pop)
        if postponed:
            await self._retry.call(lambda: self._queue.postpone_webhooks(postponed, POSTPONE_S))
        return len(due)

    async def _deliver(self, webhook: DueWebhook) -> None:
        try:
            delivery = await self._send(webhook)
        except UsageError as error:  # its record cannot be read
            delivery = Delivery((WebhookAttempt(time.time(), None, str(error)[:MAX_ERROR_CHARACTERS]),), "failed", 0.0)
        except Exception as error:  # a bug must not stop the other webhooks
            log.exception("internal error in a webhook: please report it", extra={"job": webhook.job_id})
            delivery = Delivery((WebhookAttempt(time.time(), None, internal_error_text(error)),), "failed", 0.0)
        if delivery is not None:
            self._metrics.webhooks.labels(delivery.outcome).inc()
            try:
                await self._retry.call(lambda: self._queue.record_webhook(webhook, delivery))
            except UsageError as error:
                log.error("the attempt could not be recorded: %s", error, extra={"job": webhook.job_id})

    async def _send(self, webhook: DueWebhook) -> Delivery | None:
        """None: the job was deleted, or retried since."""
        jobs = self._queue.jobs
        record = (await self._retry.call(lambda: jobs.records([webhook.job_id])))[0]
        if record is None or record.ended_at is None or record.request.callback is None:
            return None
        result = await self._retry.call(lambda: jobs.result(webhook.job_id))
        return await self._sender.send(record, result)
