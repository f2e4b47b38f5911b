"""Webhooks: signatures that the published verifier accepts, retries, timeouts, refused addresses."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import redis as library
from fastapi.testclient import TestClient
from standardwebhooks import Webhook, WebhookVerificationError

import choral
from choral.errors import UsageError
from choral.jobs import Client, webhook_delivery, worker_queue
from choral.jobs.record import JobRecord
from choral.jobs.webhook_delivery import sign, signing_key, webhook_body, webhook_id
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings
from test_record import record_of
from webhook_receiver import receive_webhooks
from worker_thread import SECRET, running_worker, wait_until

DOCS = Path(__file__).parents[2] / "docs" / "jobs.md"
STANDARD_SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def ended_record(**changes: object) -> JobRecord:
    record = record_of(state="failed", ended_at="20.25", error="no audio")
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("secret", [STANDARD_SECRET, SECRET])
def test_deliveries_pass_the_published_verifier(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, secret: str
) -> None:
    with receive_webhooks() as receiver:
        receiver.statuses = [500]
        job_id = client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True, secret=secret) as worker:
            worker.join()
        verifier = Webhook(secret if secret.startswith("whsec_") else secret.encode())
        first, second = receiver.received
        for webhook in (first, second):
            event = verifier.verify(webhook.body, webhook.headers)
            assert (event["id"], event["type"], event["status"]) == (job_id, "job.failed", "failed")
            assert event["timestamp"].endswith("+00:00")
        assert first.id == second.id == webhook_id(client.show(job_id))
        with pytest.raises(WebhookVerificationError):
            verifier.verify(first.body + b" ", first.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(b"another secret").verify(first.body, first.headers)


def test_the_deprecated_headers_are_still_sent(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime
) -> None:
    with receive_webhooks() as receiver:
        client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True) as worker:
            worker.join()
    [webhook] = receiver.received
    timestamp = webhook.headers["webhook-timestamp"]
    digest = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + webhook.body, hashlib.sha256).hexdigest()
    assert webhook.headers["choral-signature"] == f"t={timestamp},v1={digest}"
    assert webhook.headers["idempotency-key"] == webhook.id


def test_without_a_secret_webhooks_are_not_signed(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime
) -> None:
    with receive_webhooks() as receiver:
        client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True, secret="") as worker:
            worker.join()
    [webhook] = receiver.received
    assert webhook.id.startswith("msg_")
    assert not {"webhook-signature", "choral-signature"} & webhook.headers.keys()


def test_a_retried_job_sends_a_webhook_with_a_new_id(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime
) -> None:
    with receive_webhooks() as receiver:
        job_id = client.submit("http://127.0.0.1:1/missing.mp3", callback=receiver.url)
        for n_runs in (1, 2):
            with running_worker(redis_url, model, runtime, is_burst=True, max_attempts=1) as worker:
                worker.join()
            assert len({webhook.id for webhook in receiver.received}) == len(receiver.received) == n_runs
            client.retry(job_id)


def test_webhook_ids_contain_no_full_stop_and_identify_the_end_of_a_job() -> None:
    record = ended_record()
    ids = {
        webhook_id(each)
        for each in (
            record,
            dataclasses.replace(record, request=dataclasses.replace(record.request, id="job.2")),
            ended_record(ended_at=20.5),
        )
    }
    assert len(ids) == 3
    assert not any("." in each for each in ids)
    assert webhook_id(record) == webhook_id(ended_record(webhook="pending"))


def test_the_receiver_in_the_docs_accepts_valid_webhooks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    monkeypatch.setenv("CHORAL_WEBHOOK_SECRET", STANDARD_SECRET)
    receiver: dict[str, Any] = {}
    exec(next(block for block in blocks if "verify" in block), receiver)
    body, timestamp = webhook_body(ended_record(), None), int(time.time())
    signature = sign(signing_key(STANDARD_SECRET), "msg_1", timestamp, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(timestamp), "webhook-signature": signature}
    with TestClient(receiver["app"]) as http:
        assert http.post("/done", content=body, headers=headers).status_code == 200
        assert http.post("/done", content=body + b" ", headers=headers).status_code == 400


def test_signature_matches_an_independent_computation() -> None:
    # printf 'msg_1.1.{}' | openssl dgst -sha256 -hmac key -binary | base64
    assert sign(b"key", "msg_1", 1, b"{}") == "v1,jKGHVBDuJf5ZbCMVrrutoMHDN1OlFFCE9iogVIO9MLQ="


def test_signing_keys() -> None:
    assert signing_key("plain") == b"plain"
    assert signing_key("") == b""
    assert signing_key("whsec_AAECAw==") == signing_key("whsec_AAECAw") == bytes(range(4))
    for secret in ("whsec_", "whsec_!!!", "whsec_AAE?"):
        with pytest.raises(UsageError, match="base64"):
            signing_key(secret)


def test_large_results_are_replaced_by_a_link_if_there_is_one() -> None:
    record = ended_record(state="succeeded", error=None)
    small, large = b'{"text": "x"}', json.dumps({"text": "x" * 300_000}).encode()
    link = "https://example.org/{id}"
    assert json.loads(webhook_body(record, small, link))["result"] == {"text": "x"}
    assert json.loads(webhook_body(record, large))["result"] == json.loads(large)
    body = json.loads(webhook_body(record, large, link))
    assert (body["result"], body["result_url"]) == (None, "https://example.org/job")


@pytest.mark.parametrize(
    ("statuses", "outcome", "n_attempts"),
    [([500, 429, 302], "delivered", 4), ([404], "failed", 1), ([500] * 20, "failed", 10)],
)
def test_failed_deliveries_are_retried_and_every_attempt_is_recorded(
    client: Client,
    redis_url: str,
    model: choral.Model,
    runtime: Runtime,
    statuses: list[int],
    outcome: str,
    n_attempts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook_delivery, "POLL_S", 0.02)
    with receive_webhooks() as receiver:
        receiver.statuses = list(statuses)
        job_id = client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True, webhook_retry_s=0.01) as worker:
            worker.join()
        record = client.show(job_id)
        assert (record.webhook, len(record.webhook_attempts)) == (outcome, n_attempts)
        assert [attempt.status for attempt in record.webhook_attempts][: len(statuses)] == statuses[:n_attempts]
        assert {webhook.id for webhook in receiver.received} == {webhook_id(record)}
        body = json.loads(receiver.received[0].body)
        assert (body["status"], body["result"], "not audio" in body["error"]) == ("failed", None, True)
    exported = prometheus_client.generate_latest(worker.metrics.registry).decode()
    assert f'choral_webhooks_total{{outcome="{outcome}"}} 1.0' in exported


def test_a_webhook_to_a_private_address_is_never_sent(client: Client, redis_url: str, model: choral.Model) -> None:
    guarded_runtime = Runtime.for_service(model.transcriber, ServingSettings(processes=1), 1)
    with receive_webhooks() as receiver, guarded_runtime as guarded:
        job_id = client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, guarded, is_burst=True) as worker:
            worker.join()
        assert receiver.received == []
    [attempt] = client.show(job_id).webhook_attempts
    assert "not a host on the public internet" in str(attempt.error)


def test_a_receiver_that_does_not_respond_in_time(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime
) -> None:
    with receive_webhooks() as receiver:
        receiver.delay_s = 0.6
        job_id = client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, webhook_s=0.2):
            wait_until(lambda: len(client.show(job_id).webhook_attempts) > 0)
    attempt = client.show(job_id).webhook_attempts[0]
    assert attempt.status is None
    # Two timeouts of equal length: total and read.
    assert attempt.error in ("no response within 0.2 s", "no response in time")


def test_a_bug_in_one_delivery_fails_that_webhook_alone(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = webhook_delivery.open_url

    def open_url(url: str, **settings: Any) -> Any:
        if "odd" in url:
            raise OverflowError("Python int too large to convert to C int")
        return original(url, **settings)

    monkeypatch.setattr(webhook_delivery, "open_url", open_url)
    with receive_webhooks() as receiver:
        odd = client.submit(b"not audio", callback="http://127.0.0.1/odd")
        client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True) as worker:
            worker.join()
        assert len(receiver.received) == 1
    record = client.show(odd)
    [attempt] = record.webhook_attempts
    assert (record.webhook, "OverflowError" in str(attempt.error)) == ("failed", True)


def test_a_webhook_of_a_damaged_record_fails_alone(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime
) -> None:
    with receive_webhooks() as receiver, library.Redis.from_url(redis_url) as plain:
        damaged, gone, odd = (client.submit(b"not audio", callback=receiver.url) for _ in range(3))
        for job_id in (damaged, gone, odd):
            client.cancel(job_id)
        plain.hset(f"{{choral}}:job:{damaged}", "timings", "[1]")
        plain.delete(f"{{choral}}:job:{gone}")
        plain.set(f"{{choral}}:job:{gone}", "not a hash")
        request = json.loads(client.show(odd).request.to_json()) | {"callback": None}  # only the hash has it
        plain.hset(f"{{choral}}:job:{odd}", "request", json.dumps(request))
        client.submit(b"not audio", callback=receiver.url)
        with running_worker(redis_url, model, runtime, is_burst=True) as worker:
            worker.join()
        assert len(receiver.received) == 1
        for job_id in (damaged, odd):
            assert plain.hget(f"{{choral}}:job:{job_id}", "webhook") == b"failed"


def test_a_host_gets_a_share_of_the_concurrent_sends(
    client: Client, redis_url: str, model: choral.Model, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_delivery, "MAX_PER_HOST", 2)
    monkeypatch.setattr(webhook_delivery, "MAX_CONCURRENT", 4)
    monkeypatch.setattr(worker_queue, "POSTPONE_S", 0.1)
    with receive_webhooks() as slow, receive_webhooks() as good:
        slow.delay_s = 3.0
        for _ in range(6):
            client.cancel(client.submit(b"x", callback=slow.url))
        time.sleep(0.01)
        client.cancel(client.submit(b"x", callback=good.url.replace("127.0.0.1", "localhost")))
        with (
            Runtime.for_service(
                model.transcriber, ServingSettings(allowed_hosts=("127.0.0.1", "localhost")), 1
            ) as local,
            running_worker(redis_url, model, local, is_burst=True) as worker,
        ):
            wait_until(lambda: len(good.received) == 1, 2.5)
            assert len(slow.received) <= 2
            worker.join()
        assert len(slow.received) == 6
