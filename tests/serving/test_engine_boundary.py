"""A real engine in this process and its clients in others: results equal those without a boundary."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import choral
from choral.serving.engine_server import EngineServer
from client_process import client_process, result_of

OPTIONS: list[dict[str, Any]] = [
    {"word_timestamps": True, "token_logprobs": True, "initial_prompt": "A speech."},
    {"mode": "batched", "temperature": 0.7, "best_of": 2, "seed": 3},
]


@pytest.fixture(scope="module")
def multilingual(tiny_ggml: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_ggml, device="cpu") as model:
        yield model


@pytest.fixture
def server(multilingual: choral.Model) -> Iterator[EngineServer]:
    with contextlib.closing(EngineServer(multilingual.transcriber)) as server:
        yield server


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_another_process_gets_exactly_the_results_of_this_one(
    multilingual: choral.Model, server: EngineServer, jfk: Path
) -> None:
    with client_process(server, "everything", str(jfk), OPTIONS) as process:
        found = result_of(process)
    assert found["transcripts"] == plain([asdict(multilingual.transcribe(jfk, **options)) for options in OPTIONS])
    assert found["languages"] == multilingual.detect_language(jfk)
    assert not found["has_torch"]
