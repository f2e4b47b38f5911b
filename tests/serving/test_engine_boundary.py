"""A real engine in its process and a client in another: the results are exactly those without a boundary."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import choral
from choral.serving.engine_process import EngineProcess
from client_process import client_process, result_of

SETTINGS = choral.EngineSettings(device="cpu", threads=1)
OPTIONS: list[dict[str, Any]] = [
    {"word_timestamps": True, "token_logprobs": True, "initial_prompt": "A speech."},
    {"mode": "batched", "temperature": 0.7, "best_of": 2, "seed": 3},
]


def test_another_process_gets_exactly_the_results_of_this_one(tiny_ggml: Path, jfk: Path) -> None:
    with (
        contextlib.closing(EngineProcess(str(tiny_ggml), SETTINGS)) as engine,
        client_process(engine.add_client, "everything", str(jfk), OPTIONS) as client,
        choral.load(tiny_ggml, settings=SETTINGS) as model,
    ):
        transcripts = [asdict(model.transcribe(jfk, **options)) for options in OPTIONS]
        found = result_of(client)
        assert found["transcripts"] == json.loads(json.dumps(transcripts))
        assert found["languages"] == model.detect_language(jfk)
        assert not found["has_torch"]
