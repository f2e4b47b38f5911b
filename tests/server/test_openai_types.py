"""Answers of a real server, checked strictly against the types of OpenAI's client, which itself checks nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Model
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    Translation,
    TranslationVerbose,
)
from pydantic import BaseModel

from serve_process import ServeProcess


def check(kind: type[BaseModel], fields: dict[str, Any], *own_fields: str) -> None:
    """All fields have their types, none is null, and there are no others but Choral's own."""
    checked = kind.model_validate_json(json.dumps(fields), strict=True)
    assert checked.model_extra is not None
    assert set(checked.model_extra) == set(own_fields)
    assert "null" not in json.dumps(fields).replace('"', " ").split()


@pytest.fixture(scope="module")
def post(shared_server: ServeProcess, jfk: Path) -> Any:
    def send(task: str = "transcriptions", **fields: Any) -> httpx.Response:
        data = {"model": "gpt-transcribe", **fields}
        answer = httpx.post(
            f"{shared_server.url}/v1/audio/{task}", data=data, files={"file": jfk.read_bytes()}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        return answer

    return send


def test_answers(post: Any) -> None:
    check(Transcription, post(**{"include[]": "logprobs"}).json())
    verbose = {"response_format": "verbose_json"}
    check(TranscriptionVerbose, post(**verbose).json(), "task", "language_probability")
    words = {**verbose, "timestamp_granularities[]": "word", "language": "en"}
    check(TranscriptionVerbose, post(**words).json(), "task")
    check(Translation, post("translations").json(), "usage", "languages")
    check(TranslationVerbose, post("translations", **verbose).json(), "task", "language_probability", "usage")


def test_events(post: Any) -> None:
    lines = post(stream="true", **{"include[]": "logprobs"}).text.split("\n\n")
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines[:-2])
    assert lines[-2] == "data: [DONE]"
    for delta in deltas:
        check(TranscriptionTextDeltaEvent, delta)
    check(TranscriptionTextDoneEvent, done)


def test_model_list(shared_server: ServeProcess) -> None:
    for fields in httpx.get(f"{shared_server.url}/v1/models").json()["data"]:
        check(Model, fields)
