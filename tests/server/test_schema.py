"""Requests generated from the server's OpenAPI document: no 5xx, and every response conforms."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from audio.media_files import encode, read_clip
from serve_process import ServeProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FEW, MANY, WITH_SPEECH = 30, 1000, 5
TAKEN = 202
JOB_ROUTES = ("/v1/jobs/{job_id}", "/v1/jobs/{job_id}/events")
TRANSCRIPTIONS = "/v1/audio/transcriptions"
FITTING, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CASES = [
    pytest.param(path, method, mode, id=f"{method} {path}-{mode.value}")
    for path, method, modes in [
        (TRANSCRIPTIONS, "POST", (FITTING, WRONG)),
        ("/v1/audio/translations", "POST", (FITTING, WRONG)),
        ("/v1/audio/diarization", "POST", (FITTING, WRONG)),
        ("/v1/realtime/client_secrets", "POST", (FITTING,)),
        ("/v1/models", "GET", (FITTING,)),
        ("/v1/models/{model}", "GET", (FITTING,)),
        ("/v1/jobs", "GET", (FITTING, WRONG)),
        ("/v1/jobs", "POST", (FITTING, WRONG)),
        ("/v1/jobs/{job_id}", "GET", (FITTING,)),
        ("/v1/jobs/{job_id}", "DELETE", (FITTING,)),
        ("/v1/jobs/{job_id}/events", "GET", (FITTING,)),
        ("/v1/engine", "GET", (FITTING,)),
        ("/health/live", "GET", (FITTING,)),
        ("/health/ready", "GET", (FITTING,)),
        ("/metrics", "GET", (FITTING,)),
    ]
    for mode in modes
]


def run_cases(
    shared_server: ServeProcess,
    path: str,
    method: str,
    n_examples: int,
    mode: GenerationMode = FITTING,
    *,
    speech: bytes | None = None,
    job_id: str | None = None,
) -> list[int]:
    """Send generated requests and return the statuses of all responses.

    With `speech`, every request is valid and contains it; with `job_id`, every second one is for that job.
    """
    document = httpx.get(f"{shared_server.url}/openapi.json").json()
    if method == "POST" and mode is WRONG:  # whose generator cannot make binary fields
        properties = document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        del properties["properties"]["file"]["format"]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=shared_server.url)
    statuses: list[int] = []

    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        if speech is not None:
            kept = {name: case.body[name] for name in ("prompt", "mode", "priority", "stream") if name in case.body}
            case.body = {**kept, "model": "tiny", "language": "en", "file": speech}
        if job_id is not None and len(statuses) % 2 == 0:
            case.path_parameters = {"job_id": job_id}
        answer = case.call_and_validate(checks=CHECKS, timeout=60)
        statuses.append(answer.status_code)
        if answer.status_code == TAKEN:  # its audio is made up: it goes before it is fetched or decoded for long
            own = f"{shared_server.url}/v1/jobs/{answer.json()['id']}"
            assert httpx.delete(own).status_code == 200
            assert httpx.delete(own).status_code in (200, 404)

    check()
    return statuses


@pytest.fixture(scope="module")
def job_id(shared_server: ServeProcess, jfk: Path) -> str:
    """The id of a job that has succeeded."""
    speech = encode(read_clip(jfk, 2.0), "flac", "flac")
    given = httpx.post(f"{shared_server.url}/v1/jobs", files={"file": ("a.flac", speech)}, timeout=60).json()["id"]
    deadline_s = time.monotonic() + 120
    while (job := httpx.get(f"{shared_server.url}/v1/jobs/{given}").json())["state"] != "succeeded":
        assert time.monotonic() < deadline_s, job
        time.sleep(0.1)
    return str(given)


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_generated_requests(shared_server: ServeProcess, path: str, method: str, mode: GenerationMode) -> None:
    run_cases(shared_server, path, method, FEW, mode)


def test_generated_requests_with_speech(shared_server: ServeProcess, jfk: Path) -> None:
    speech = encode(read_clip(jfk, 2.0), "flac", "flac")
    statuses = run_cases(shared_server, TRANSCRIPTIONS, "POST", WITH_SPEECH, speech=speech)
    assert statuses
    assert set(statuses) == {200}


@pytest.mark.parametrize("path", JOB_ROUTES)
def test_generated_requests_for_a_job(shared_server: ServeProcess, job_id: str, path: str) -> None:
    statuses = run_cases(shared_server, path, "GET", FEW, job_id=job_id)
    assert 200 in statuses


@pytest.mark.slow
@pytest.mark.parametrize("path", JOB_ROUTES)
def test_many_generated_requests_for_a_job(shared_server: ServeProcess, job_id: str, path: str) -> None:
    assert 200 in run_cases(shared_server, path, "GET", MANY, job_id=job_id)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_many_generated_requests(shared_server: ServeProcess, path: str, method: str, mode: GenerationMode) -> None:
    run_cases(shared_server, path, method, MANY, mode)
