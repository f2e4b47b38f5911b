"""Made-up requests from the server's own OpenAPI document: none is answered with a 5xx, and every answer conforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

from live_server import LiveServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FEW, MANY = 40, 2000


def run_cases(live: LiveServer, path: str, method: str, n_examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    operation = schema[path][method]
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        strategy = operation.as_strategy(generation_mode=mode)

        @given(case=strategy)
        @settings(
            max_examples=n_examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=60)

        run: Callable[[], None] = check
        run()


ROUTES = [
    ("/v1/audio/transcriptions", "POST"),
    ("/v1/audio/translations", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/health/live", "GET"),
    ("/health/ready", "GET"),
    ("/metrics", "GET"),
]


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_some_cases(live: LiveServer, path: str, method: str) -> None:
    run_cases(live, path, method, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_thousands_of_cases(live: LiveServer, path: str, method: str) -> None:
    run_cases(live, path, method, MANY)
