"""Made-up requests from the server's own OpenAPI document: none is answered with a 5xx, and every answer conforms."""

from __future__ import annotations

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
from live_server import LiveServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FEW, MANY, WITH_SPEECH = 30, 1000, 5
TRANSCRIPTIONS = "/v1/audio/transcriptions"
FITTING, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CASES = [
    pytest.param(path, method, mode, id=f"{path}-{mode.value}")
    for path, method, modes in [
        (TRANSCRIPTIONS, "POST", (FITTING, WRONG)),
        ("/v1/audio/translations", "POST", (FITTING, WRONG)),
        ("/v1/models", "GET", (FITTING,)),
        ("/v1/models/{model}", "GET", (FITTING,)),
        ("/v1/jobs", "GET", (FITTING, WRONG)),
        ("/v1/jobs", "POST", (WRONG,)),
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
    live: LiveServer,
    path: str,
    method: str,
    n_examples: int,
    mode: GenerationMode = FITTING,
    *,
    speech: bytes | None = None,
) -> list[int]:
    """The statuses of all answers; with speech, every request carries it and is sound."""
    document = httpx.get(f"{live.url}/openapi.json").json()
    if method == "POST" and mode is WRONG:  # whose generator cannot make binary fields
        properties = document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        del properties["properties"]["file"]["format"]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=live.url)
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
            kept = {name: case.body[name] for name in ("prompt", "mode", "priority") if name in case.body}
            case.body = {**kept, "model": "tiny", "language": "en", "file": speech}
        statuses.append(case.call_and_validate(checks=CHECKS, timeout=60).status_code)

    check()
    return statuses


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_some_cases(live: LiveServer, path: str, method: str, mode: GenerationMode) -> None:
    run_cases(live, path, method, FEW, mode)


def test_some_cases_with_speech(live: LiveServer, jfk: Path) -> None:
    speech = encode(read_clip(jfk, 2.0), "flac", "flac")
    statuses = run_cases(live, TRANSCRIPTIONS, "POST", WITH_SPEECH, speech=speech)
    assert statuses
    assert set(statuses) == {200}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_thousands_of_cases(live: LiveServer, path: str, method: str, mode: GenerationMode) -> None:
    run_cases(live, path, method, MANY, mode)
