"""Good requests of the tests of faults: transcriptions, jobs, and waiting for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from attack_probe import ENDED, wait_until

ROUTE = "/v1/audio/transcriptions"


def transcribe(url: str, speech: Path, **fields: str) -> httpx.Response:
    with speech.open("rb") as file:
        data = {"model": "whisper-1", **fields}
        return httpx.post(url + ROUTE, files={"file": (speech.name, file)}, data=data, timeout=120)


def submit(url: str, speech: Path, **fields: str) -> str:
    with speech.open("rb") as file:
        answer = httpx.post(f"{url}/v1/jobs", files={"file": (speech.name, file)}, data=fields, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_for_job(url: str, job_id: str, *states: str, limit_s: float = 90.0) -> dict[str, Any]:
    """The job once it is in one of these states; without any, once it has ended."""
    job: dict[str, Any] = {}

    def has_state() -> bool:
        job.update(httpx.get(f"{url}/v1/jobs/{job_id}", timeout=30).json())
        return job["state"] in (states or ENDED)

    wait_until(has_state, limit_s)
    return job
