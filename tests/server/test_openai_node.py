"""OpenAI's Node client against a real server: the same matrix, the same texts, typed errors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import openai
import pytest

from node_client import Call, Fields, run
from serve_process import ServeProcess
from test_openai_client import FORMATS, GRANULARITIES, LANGUAGES_AND_PROMPTS, ask, check

PROMPT = "A speech."
MATRIX = list(itertools.product(FORMATS, GRANULARITIES, (False, True), LANGUAGES_AND_PROMPTS))


def call_of(jfk: Path, case: tuple[Any, ...]) -> Call:
    name, granularities, is_stream, (language, prompt) = case
    fields = {
        "response_format": name,
        "language": language,
        "prompt": prompt,
        "timestamp_granularities": list(granularities) or None,
        "stream": is_stream or None,
    }
    return Call("transcriptions", str(jfk), fields={key: value for key, value in fields.items() if value is not None})


@pytest.mark.slow  # the Python client sends the same requests
def test_every_format_granularity_stream_language_prompt(
    openai_node: Path, shared_server: ServeProcess, client: openai.OpenAI, jfk: Path
) -> None:
    wanted = {None: ask(client, jfk).text, PROMPT: ask(client, jfk, prompt=PROMPT).text}
    outcomes = run(openai_node, shared_server.url, [call_of(jfk, case) for case in MATRIX])
    for (name, granularities, is_stream, (_, prompt)), outcome in zip(MATRIX, outcomes, strict=True):
        if "word" in granularities and name != "verbose_json":
            assert (outcome.error.kind, outcome.error.status) == ("BadRequestError", 400)
            assert outcome.error.param == "timestamp_granularities"
        elif is_stream and name not in ("json", "text"):
            assert outcome.answer == []  # the server does not stream, as at OpenAI, and this client waits for events
        elif is_stream:
            *deltas, done = outcome.answer
            assert {event.type for event in deltas} == {"transcript.text.delta"}
            assert done.type == "transcript.text.done"
            assert "".join(event.delta for event in deltas) == done.text == wanted[prompt]
        else:
            check(outcome.answer, name, granularities, wanted[prompt])


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the Python client's own, on translations
def test_translation_in_every_format(
    openai_node: Path, shared_server: ServeProcess, client: openai.OpenAI, jfk: Path
) -> None:
    whole = ask(client, jfk, "translations").text
    calls = [Call("translations", str(jfk), fields={"response_format": name}) for name in FORMATS]
    for name, outcome in zip(FORMATS, run(openai_node, shared_server.url, calls), strict=True):
        check(outcome.answer, name, (), whole)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_translations_models_and_errors(
    openai_node: Path, shared_server: ServeProcess, client: openai.OpenAI, prompts: Any, jfk: Path
) -> None:
    spanish = prompts("es", 1)[0]
    translated, unknown, wrong, language, models, missing = run(
        openai_node,
        shared_server.url,
        [
            Call("translations", str(spanish), fields={"response_format": "verbose_json"}),
            Call("transcriptions", str(jfk), model="gpt-4o"),
            Call("transcriptions", fields={"stream": True}),
            Call("transcriptions", str(jfk), fields={"language": "xx"}),
            Call("models.list"),
            Call("models.retrieve", model="whisper-9"),
        ],
    )
    assert translated.answer.task == "translate"
    assert translated.answer.text == ask(client, spanish, "translations").text != ""
    assert error_of(unknown) == ("NotFoundError", 404, "model", "model_not_found")
    assert error_of(wrong) == ("BadRequestError", 400, "file", "not_audio")
    assert "notes.mp3" in wrong.error.message
    assert error_of(language) == ("BadRequestError", 400, "language", "invalid_value")
    assert [model.id for model in models.answer][:2] == ["tiny", "whisper-1"]
    assert error_of(missing) == ("NotFoundError", 404, "model", "model_not_found")


def error_of(outcome: Fields) -> tuple[str, int, str | None, str | None]:
    error = outcome.error
    assert error.type == "invalid_request_error"
    return error.kind, error.status, error.param, error.code
