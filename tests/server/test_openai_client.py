"""OpenAI's Python client against a real server: all formats and fields."""

from __future__ import annotations

import io
import itertools
import json
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import openai
import pytest
import srt
import webvtt
from openai import omit
from openai.types import AudioModel

import local_server
from choral import Recording
from serve_process import ServeProcess

SENTENCE = "ask not what your country can do for you"
FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES: tuple[tuple[str, ...], ...] = ((), ("segment",), ("word",), ("segment", "word"))
LANGUAGES_AND_PROMPTS = ((None, None), ("en", None), (None, "A speech."))


def ask(client: openai.OpenAI, path: Path, task: str = "transcriptions", **fields: Any) -> Any:
    """The client's result; for a stream, the list of its events."""
    with path.open("rb") as file:
        if task == "translations":  # the client's method has fewer fields than the server
            extra = {name: value for name, value in fields.items() if name not in ("prompt", "response_format")}
            known = {name: fields[name] for name in ("prompt", "response_format") if name in fields}
            return client.audio.translations.create(file=file, model="tiny", extra_body=extra, **known)
        answer = client.audio.transcriptions.create(file=file, **{"model": "tiny", **fields})
        return list(answer) if fields.get("stream") else answer


@pytest.fixture(scope="module")
def whole(shared_server: ServeProcess, jfk: Path) -> str:
    with shared_server.client() as client:
        text = ask(client, jfk).text
    assert SENTENCE in text
    assert text == text.strip()
    return str(text)


def check(answer: Any, name: str, granularities: tuple[str, ...], whole: str) -> None:
    match name:
        case "json":
            assert answer.text == whole
        case "text":
            assert answer == whole + "\n"
        case "srt":
            cues = list(srt.parse(answer))
            assert " ".join(cue.content for cue in cues) == whole
            assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
        case "vtt":
            assert " ".join(cue.text for cue in webvtt.from_buffer(io.StringIO(answer))) == whole
        case "verbose_json":
            check_verbose(answer, granularities or ("segment",), whole)


def check_verbose(answer: Any, granularities: tuple[str, ...], whole: str) -> None:
    assert answer.text == whole
    assert answer.language == "english"
    assert answer.duration == pytest.approx(11.0, abs=0.01)
    assert (answer.segments is not None) == ("segment" in granularities)
    given_words = getattr(answer, "words", None)  # which the type of a translation does not have
    assert (given_words is not None) == ("word" in granularities)
    for segment in answer.segments or ():
        assert 0 <= segment.start < segment.end <= 11.01
    if given_words:
        assert " ".join(word.word for word in given_words) == whole
    if given_words and answer.segments:
        for segment in answer.segments:
            words = segment.words  # type: ignore[attr-defined]
            assert [word["word"] for word in words]
            assert all(segment.start <= word["start"] <= word["end"] <= segment.end for word in words)


def test_every_format_granularity_stream_language_prompt(shared_server: ServeProcess, jfk: Path, whole: str) -> None:
    with shared_server.client() as client:
        wanted = {None: whole, "A speech.": ask(client, jfk, prompt="A speech.").text}
    matrix = list(itertools.product(FORMATS, GRANULARITIES, (False, True), LANGUAGES_AND_PROMPTS))

    def one(client: openai.OpenAI, case: tuple[Any, ...]) -> None:
        name, granularities, is_stream, (language, prompt) = case
        fields = {
            "response_format": name,
            "language": language or omit,
            "prompt": prompt or omit,
            "timestamp_granularities": list(granularities) or omit,
            "stream": is_stream or omit,
        }
        if "word" in granularities and name != "verbose_json":
            with pytest.raises(openai.BadRequestError) as refused:
                ask(client, jfk, **fields)
            assert refused.value.param == "timestamp_granularities"
        elif is_stream and name not in ("json", "text"):  # as OpenAI does, the server ignores it
            with jfk.open("rb") as file:
                answer = client.audio.transcriptions.with_raw_response.create(file=file, model="tiny", **fields)
            assert f"stream has no effect with response_format {name}" in answer.headers["warning"]
        elif is_stream:
            events = ask(client, jfk, **fields)
            assert "".join(event.delta for event in events[:-1]) == events[-1].text
            assert events[-1].text == wanted[prompt]
        else:
            check(ask(client, jfk, **fields), name, granularities, wanted[prompt])

    with shared_server.client() as client, ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(one, client, case) for case in matrix]:
            result.result()


def test_streamed_text_equals_whole_text(client: openai.OpenAI, jfk: Path, whole: str) -> None:
    events = ask(client, jfk, stream=True)
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert events[-1].type == "transcript.text.done"
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == whole
    usage = events[-1].usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens == 550


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's own, on verbose_json
def test_translation(client: openai.OpenAI, prompts: Any, whole: str, jfk: Path) -> None:
    spanish = prompts("es", 1)[0]
    translated = ask(client, spanish, "translations", language="es", response_format="verbose_json")
    assert translated.task == "translate"
    assert translated.text
    transcribed = ask(client, spanish, language="es", response_format="verbose_json")
    assert transcribed.language == "spanish"
    assert transcribed.text != translated.text
    assert ask(client, jfk, "translations").text == whole  # English stays as it is


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("prompt", [None, "A speech."])
def test_translation_in_every_format(client: openai.OpenAI, jfk: Path, prompt: str | None) -> None:
    given = {} if prompt is None else {"prompt": prompt}
    whole = ask(client, jfk, "translations", **given).text
    assert SENTENCE in whole
    for name in FORMATS:
        check(ask(client, jfk, "translations", response_format=name, **given), name, (), whole)


def test_language_detection(client: openai.OpenAI, prompts: Any) -> None:
    answer = ask(client, prompts("fr", 1)[0], response_format="verbose_json")
    assert answer.language == "french"


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["tiny", "whisper-1"]
    assert set(get_args(AudioModel)) <= set(names)
    assert {"openai/whisper-tiny", "Systran/faster-whisper-tiny", "house-model"} <= set(names)
    for name in names:
        assert client.models.retrieve(name).owned_by == "choral"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("openai/whisper-small")
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"


def test_choral_fields(client: openai.OpenAI, shared_server: ServeProcess, jfk: Path, whole: str) -> None:
    for extra in ({"mode": "batched"}, {"vad": True}, {"hotwords": "Americans"}, {"loudness": "rms"}):
        assert SENTENCE in ask(client, jfk, extra_body={**extra, "priority": "batch"}).text
    by_words = ask(client, jfk, response_format="srt", extra_body={"word_timestamps": True})
    assert len(list(srt.parse(by_words))) >= 1
    settings = {"threshold": 0.4, "silence_duration_ms": 300, "prefix_padding_ms": 400}
    for strategy in ("auto", {"type": "server_vad", **settings}):
        assert SENTENCE in ask(client, jfk, chunking_strategy=strategy).text
    as_json = httpx.post(
        f"{shared_server.url}/v1/audio/transcriptions",
        data={"model": "tiny", "chunking_strategy": json.dumps({"type": "server_vad"})},
        files={"file": jfk.read_bytes()},
        timeout=60,
    )
    assert SENTENCE in as_json.json()["text"]


def test_url_instead_of_file(shared_server: ServeProcess, jfk: Path, whole: str) -> None:
    with local_server.serve() as files:
        url = files.add("/jfk.wav", jfk.read_bytes())
        fields = {"model": "tiny", "url": url}
        answer = httpx.post(f"{shared_server.url}/v1/audio/transcriptions", data=fields, timeout=60)
        assert answer.json()["text"] == whole
        gone = httpx.post(
            f"{shared_server.url}/v1/audio/transcriptions", data={**fields, "url": f"{files.url}/no"}, timeout=60
        )
        assert gone.status_code == 404
        assert gone.json()["error"]["param"] == "url"
    inside = httpx.post(
        f"{shared_server.url}/v1/audio/transcriptions", data={**fields, "url": "http://169.254.169.254/"}, timeout=60
    )
    assert inside.status_code == 403
    assert inside.json()["error"]["param"] == "url"


def test_temperature_zero_enables_fallback(client: openai.OpenAI, jfk: Path) -> None:
    assert ask(client, jfk, temperature=0.0).text == ask(client, jfk).text
    warm = ask(client, jfk, temperature=0.8, response_format="verbose_json")
    assert {segment.temperature for segment in warm.segments} == {0.8}


def test_disconnect_frees_engine_slots(shared_server: ServeProcess, speech_clips: list[Path]) -> None:
    clips = [Recording.open(path).samples(0, 10**9) for path in speech_clips]
    joined = np.concatenate([*clips, *clips[::-1], *clips])  # several windows: the first gives text, others follow
    long = io.BytesIO()
    with wave.open(long, "w") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((joined * 32_767).astype("<i2").tobytes())
    with shared_server.client() as client:
        audio = ("long.wav", long.getvalue())
        events = client.audio.transcriptions.create(file=audio, model="tiny", language="en", stream=True)
        assert next(iter(events)).type == "transcript.text.delta"
        transcribed_s = shared_server.metric("choral_audio_seconds_total")
        events.close()
        deadline_s = time.monotonic() + 5
        while shared_server.metric("choral_http_requests_open") > 1 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert shared_server.metric("choral_http_requests_open") == 1  # the one that asks
    deadline_s = time.monotonic() + 3  # for the step that was under way
    while shared_server.metric("choral_engine_windows_waiting") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.5)
    n_tokens = shared_server.metric("choral_engine_tokens_total")
    time.sleep(0.5)
    assert shared_server.metric("choral_engine_tokens_total") == n_tokens
    assert shared_server.metric("choral_engine_windows_waiting") == 0
    assert shared_server.metric("choral_audio_seconds_total") == transcribed_s


def test_fields_of_openai_and_of_other_servers(client: openai.OpenAI, jfk: Path, whole: str) -> None:
    """A client's usual fields are done, not refused; what is not done is named in a header."""
    hinted = ask(client, jfk, model="gpt-transcribe", languages=["en", "de"], keywords=["Americans", "country"])
    assert SENTENCE in hinted.text
    assert [language.code for language in hinted.languages] == ["en"]
    *_, done = ask(client, jfk, model="gpt-transcribe", stream=True)
    assert [language.code for language in done.languages] == ["en"]
    vllm = {"seed": 7, "max_completion_tokens": 1000, "use_beam_search": True, "top_p": 0.9, "repetition_penalty": 1.1}
    speaches = {"vad_filter": True, "without_timestamps": True, "hotwords": "", "user": "me", "best_of": 2}
    for model, extra in (("openai/whisper-tiny", vllm), ("Systran/faster-whisper-tiny", speaches)):
        with jfk.open("rb") as file:
            answer = client.audio.transcriptions.with_raw_response.create(
                file=file, model=model, language="en-US", prompt="", temperature=0, extra_body=extra
            )
        assert SENTENCE in answer.parse().text
        warning = answer.headers.get("warning")
        assert warning == (
            '299 choral "unknown fields without effect: top_p, repetition_penalty"' if "top_p" in extra else None
        )
    assert ask(client, jfk, language="auto").text == whole


def test_token_logprobs(client: openai.OpenAI, jfk: Path, whole: str) -> None:
    answer = ask(client, jfk, include=["logprobs"])
    assert answer.text == whole
    assert b"".join(bytes(map(int, own.bytes)) for own in answer.logprobs).decode().strip() == whole
    assert "".join(own.token for own in answer.logprobs).strip() == whole
    assert all(own.logprob <= 0 for own in answer.logprobs)
    *deltas, done = ask(client, jfk, include=["logprobs"], stream=True)
    expected = [own.model_dump() for own in answer.logprobs]
    assert [own.model_dump() for delta in deltas for own in delta.logprobs] == expected
    assert [own.model_dump() for own in done.logprobs] == expected
    assert ask(client, jfk).logprobs is None
