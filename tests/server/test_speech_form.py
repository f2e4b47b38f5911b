"""Forms as pydantic models: what they accept, how they refuse, and what the OpenAPI schema says about it."""

from __future__ import annotations

import dataclasses
import io

import pytest
from starlette.responses import Response

from choral.options import TEMPERATURES, TranscribeOptions
from choral.server.api_errors import ApiError
from choral.server.forms import form_schema, validate, validate_json
from choral.server.jobs.job_form import JobForm, _form_fields, request_body
from choral.server.request_warnings import add_warnings, unknown_fields_warning
from choral.server.speech_form import SpeechForm, SpeechRequest, read_speech_request
from choral.server.upload import Form
from choral.serving.input_sources import OpenFile


def read(*fields: tuple[str, str]) -> SpeechRequest:
    files = (("file", OpenFile("a.wav", io.BytesIO())),)
    return read_speech_request(Form((("model", "tiny"), *fields), files), "transcribe")


def refusal(*fields: tuple[str, str]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read(*fields)
    return refused.value


def test_chunking_strategy_is_read_in_all_three_forms() -> None:
    auto = read(("chunking_strategy", "auto")).options
    assert (auto.mode, auto.vad, auto.vad_threshold) == ("batched", True, 0.5)
    as_json = read(("chunking_strategy", '{"type": "server_vad", "silence_duration_ms": 250}')).options
    assert as_json.vad_min_silence == 0.25
    as_fields = read(("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "0.3")).options
    assert as_fields.vad_threshold == 0.3
    twice = refusal(("chunking_strategy", "auto"), ("chunking_strategy[type]", "server_vad"))
    assert (twice.param, "twice" in str(twice)) == ("chunking_strategy", True)
    a_flag = refusal(("chunking_strategy", '{"type": "server_vad", "threshold": true}'))
    assert "`chunking_strategy.threshold` is 'True'" in str(a_flag)


def test_options_follow_openai() -> None:
    options = read(("temperature", "0"), ("language", "German"), ("prompt", "")).options
    assert (options.temperature, options.language, options.initial_prompt) == (TEMPERATURES, "de", None)
    assert read(("temperature", "0.5")).options.temperature == 0.5
    two = read(("languages[]", "French"), ("languages", "ru"), ("multilingual", "true")).options
    assert (two.languages, two.multilingual) == (("fr", "ru"), True)
    for fields in ([("languages[]", "klingon")], [("languages[]", "fr"), ("language", "en")]):
        assert refusal(*fields).param == "languages"
    words = read(("response_format", "verbose_json"), ("timestamp_granularities[]", "word"))
    assert words.options.word_timestamps


def test_fields_of_other_servers() -> None:
    options = read(
        ("keywords[]", "Choral"), ("keywords[]", "a, b"), ("seed", "3"), ("max_completion_tokens", "30"),
        ("use_beam_search", "true"), ("vad_filter", "true"), ("without_timestamps", "true"), ("best_of", "2"),
    ).options  # fmt: skip
    assert options.hotword_terms == ("Choral", "a, b")
    assert (options.seed, options.max_tokens, options.beam_size, options.best_of) == (3, 30, 5, 2)
    assert (options.vad, options.timestamps) == (True, False)
    assert read(("use_beam_search", "true"), ("beam_size", "3")).options.beam_size == 3
    assert read(("use_beam_search", "false")).options.beam_size == 1
    assert read(("use_beam_search", "true"), ("n", "2")).options.beam_size == 2
    assert read(("n", "1")).options.beam_size == 1
    assert refusal(("n", "2")).param == "n"
    assert read(("max_completion_tokens", "4096")).options.max_tokens is None
    for several in (
        [("temperature", "0, 0.4")],
        [("temperature", "[0, 0.4]")],
        [("temperature[]", "0"), ("temperature[]", "0.4")],
    ):
        assert read(*several).options.temperature == (0.0, 0.4)


def test_empty_fields_and_locales() -> None:
    plain = read().options
    empty = (
        "language",
        "prompt",
        "temperature",
        "timestamp_granularities[]",
        "stream",
        "response_format",
        "seed",
        "vad",
    )
    assert read(*((name, "") for name in empty)).options == plain
    assert read(("language", "auto")).options == plain
    for locale, code in (("en-US", "en"), ("pt_BR", "pt"), ("zh-Hant-TW", "zh"), ("nb-NO", "no"), ("yue-HK", "yue")):
        assert read(("language", locale)).options.language == code
    assert refusal(("model", ""), ("language", "english-US")).param == "language"


def test_unknown_fields_are_refused_or_named_in_a_warning() -> None:
    files = (("file", OpenFile("a.wav", io.BytesIO())),)
    form = Form(
        (("model", "tiny"), ("nonsense", "1"), ("top_p", "1"), ("stream", "true"), ("response_format", "srt")), files
    )
    request = read_speech_request(form, "transcribe", unknown_fields="warn")
    ignored = "unknown fields without effect: nonsense, top_p"
    assert request.warnings == (ignored, "stream has no effect with response_format srt")
    assert not request.form.is_streamed
    with pytest.raises(ApiError, match="unknown field `nonsense`"):
        read_speech_request(form, "transcribe", unknown_fields="refuse")


def test_names_of_unknown_fields_stay_in_their_header() -> None:
    names = ['a"b\r\nSet-Cookie: x=1', "ü" * 100, *(f"field{n}" for n in range(300))]
    response = add_warnings(Response(), [unknown_fields_warning(names), "another"])
    warning = response.headers["warning"]
    assert warning.startswith('299 choral "unknown fields without effect: a?b??Set-Cookie??x?1, ???')
    assert warning.endswith(', field17, and more", 299 choral "another"')
    assert len(warning) < 600
    assert "warning" not in add_warnings(Response(), []).headers


@pytest.mark.parametrize("name", ["nonsense", "mode[]", "stream[x]", "Model"])
def test_unknown_fields_are_named(name: str) -> None:
    error = refusal((name, "1"))
    assert (error.param, error.code) == (name, "unknown_parameter")


def test_job_form_has_every_option_with_its_range() -> None:
    schema = JobForm.model_json_schema()["properties"]
    assert set(schema) == {
        "url",
        "model",
        "priority",
        "callback",
        "align",
        *(field.name for field in dataclasses.fields(TranscribeOptions)),
    }
    assert (schema["beam_size"]["minimum"], schema["beam_size"]["maximum"]) == (1, 64)
    content = request_body()["requestBody"]["content"]
    assert "file" in content["multipart/form-data"]["schema"]["properties"]
    assert form_schema(SpeechForm)["required"] == ["model"]


def test_speakers_are_a_number_or_two() -> None:
    for text, expected in (("2", 2), ("2-5", (2, 5))):
        options = read(("response_format", "diarized_json"), ("speakers", text)).options
        assert (options.diarize, options.speakers) == (True, expected)
        assert validate(JobForm, {"speakers": text}).speakers == expected
    assert validate_json(JobForm, '{"speakers": [2, 5]}').speakers == (2, 5)
    fields = _form_fields(Form((("voices", '{"Anna": [0.6, 0.8]}'), ("speakers", "")), ()))
    assert validate(JobForm, fields).voices == {"Anna": (0.6, 0.8)}
    with pytest.raises(ApiError, match="not valid JSON"):
        _form_fields(Form((("voices", "["),), ()))
    for wrong in ("2-5-7", "-2", "1000", "٢", "101", "2,5"):
        assert refusal(("response_format", "diarized_json"), ("speakers", wrong)).param == "speakers"


def test_json_values_must_have_their_types() -> None:
    form = validate_json(JobForm, '{"url": "https://example.org/a", "temperature": [0, 0.2], "max_tokens": null}')
    assert form.model_dump(exclude_unset=True)["temperature"] == (0.0, 0.2)
    assert validate_json(JobForm, '{"url": "https://example.org/a", "languages": ["French"]}').languages == ("fr",)
    for field in (
        '"beam_size": "2"',
        '"vad": 1',
        '"temperature": [11]',
        '"clip_timestamps": "0,1"',
        '"patience": NaN',
        '"languages": ["x"]',
        '"speakers": "2-5"',
    ):
        with pytest.raises(ApiError) as refused:
            validate_json(JobForm, f'{{"url": "https://example.org/a", {field}}}')
        assert refused.value.param == field.split('"')[1]
