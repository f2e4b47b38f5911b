"""Webhooks of jobs that run on the server itself."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
from standardwebhooks import Webhook

import choral
from job_client import LIMIT_S, wait_for
from webhook_receiver import receive_webhooks


def test_deliveries_pass_the_published_verifier(
    http: httpx.Client, webhook_secret: str, jfk: Path, jfk_transcript: choral.Transcript
) -> None:
    with receive_webhooks() as receiver:
        receiver.statuses = [503]
        response = http.post("/v1/jobs", files={"file": jfk.read_bytes()}, data={"callback": receiver.url})
        assert response.status_code == 202, response.text
        job_id = response.json()["id"]
        wait_for(http, job_id, "succeeded")
        deadline_s = time.monotonic() + LIMIT_S
        while len(receiver.received) < 2:  # the second attempt follows after about 7 s
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        for webhook in receiver.received:
            event = Webhook(webhook_secret).verify(webhook.body, webhook.headers)
            assert (event["id"], event["type"]) == (job_id, "job.succeeded")
            assert event["result"]["text"] == jfk_transcript.text
        assert len({webhook.id for webhook in receiver.received}) == 1
