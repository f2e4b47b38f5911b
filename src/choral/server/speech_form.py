"""The fields of a speech request, each checked: OpenAI's, and Choral's own beside them.

Nothing is accepted and ignored. A field that is unknown, has a wrong value, or would have no effect together with the
others is a `ApiError` that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from choral.audio.prep.inputs import PrepInput
from choral.errors import UsageError
from choral.model.languages import to_code
from choral.remote.urls import require_http, url_scheme
from choral.server.api_errors import ApiError
from choral.server.chunking import read_chunking
from choral.server.upload import Form
from choral.types import TEMPERATURES, Loudness, Mode, Priority, Task, TranscribeOptions

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["segment", "word"]
LISTS = ("timestamp_granularities", "include")
SINGLE = (
    "model", "language", "prompt", "response_format", "temperature", "stream", "chunking_strategy",
    "hotwords", "vad", "mode", "word_timestamps", "url", "priority", "loudness",
)  # fmt: skip
MAX_PROMPT_CHARACTERS = 4096  # the model hears the last 224 tokens, about 900 letters of English
HOTTEST = 1.0
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class SpeechRequest:
    audio: PrepInput
    audio_param: Literal["file", "url"]
    model: str
    options: TranscribeOptions
    response_format: ResponseFormat
    granularities: frozenset[Granularity]  # of verbose_json
    is_stream: bool
    priority: Priority


def read_request(form: Form, task: Task) -> SpeechRequest:
    fields = Fields(form)
    response_format: ResponseFormat = fields.choice("response_format", get_args(ResponseFormat)) or "json"
    is_stream = fields.flag("stream") or False
    if is_stream and response_format != "json":
        raise ApiError(
            f"stream sends events, which have no response_format {response_format}: leave out one of them",
            param="stream",
            code="unsupported_value",
        )
    granularities = _granularities(fields, response_format)
    options = _options(fields, task, has_words="word" in granularities, response_format=response_format)
    audio, audio_param = _audio(fields, form)
    return SpeechRequest(
        audio=audio,
        audio_param=audio_param,
        model=_model(fields),
        options=options,
        response_format=response_format,
        granularities=granularities,
        is_stream=is_stream,
        priority=fields.choice("priority", get_args(Priority)) or "interactive",
    )


class Fields:
    """The form's fields by name; those that nobody knows, or that came twice, are refused at once."""

    def __init__(self, form: Form) -> None:
        self._values: dict[str, list[str]] = {}
        self.chunking: dict[str, str] = {}
        for name, value in form.fields:
            self._take(name, value)
        for name, _ in form.files:
            if name != "file":
                _refuse_unknown(name)

    def _take(self, name: str, value: str) -> None:
        whole = name.removesuffix("[]")
        if name == "file":
            raise ApiError("`file` came as text: send it as a file, with a filename", param="file", code="invalid_file")
        if name.startswith("chunking_strategy["):
            self.chunking[name.removeprefix("chunking_strategy[").removesuffix("]")] = value
        elif whole in LISTS:
            self._values.setdefault(whole, []).append(value)
        elif name not in SINGLE:
            _refuse_unknown(name)
        elif name in self._values:
            raise ApiError(f"`{name}` was given twice: give it once", param=name, code="duplicate_field")
        else:
            self._values[name] = [value]

    def text(self, name: str, *, most: int = MAX_PROMPT_CHARACTERS) -> str | None:
        value = self._values.get(name, [None])[0]
        if value is not None and len(value) > most:
            raise ApiError(
                f"`{name}` has {len(value):,} characters, and at most {most:,} are taken: "
                "the model hears only the last 224 tokens of it",
                param=name,
                code="string_above_max_length",
            )
        return value

    def all(self, name: str) -> Sequence[str]:
        return self._values.get(name, [])

    def choice(self, name: str, choices: Sequence[str]) -> Any:
        value = self.text(name)
        if value is not None and value not in choices:
            raise invalid(name, value, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.text(name)
        if value is not None and value.lower() not in FLAGS:
            raise invalid(name, value, "true or false")
        return None if value is None else FLAGS[value.lower()]


def invalid(name: str, value: str, wanted: str) -> ApiError:
    return ApiError(f"`{name}` is {value[:100]!r}; it must be {wanted}", param=name, code="invalid_value")


def _refuse_unknown(name: str) -> None:
    known = ", ".join(("file", *SINGLE, *(f"{own}[]" for own in LISTS)))
    raise ApiError(f"unknown field `{name[:100]}`; the fields are {known}", param=name[:100], code="unknown_parameter")


def _granularities(fields: Fields, response_format: ResponseFormat) -> frozenset[Granularity]:
    given = fields.all("timestamp_granularities")
    for value in given:
        if value not in get_args(Granularity):
            raise invalid("timestamp_granularities", value, "segment or word")
    if given and response_format != "verbose_json":
        raise ApiError(
            f"timestamp_granularities need response_format verbose_json, and it is {response_format}",
            param="timestamp_granularities",
            code="invalid_value",
        )
    return frozenset(given) or frozenset({"segment"})  # type: ignore[arg-type]


def _options(fields: Fields, task: Task, *, has_words: bool, response_format: ResponseFormat) -> TranscribeOptions:
    wants_words = fields.flag("word_timestamps")
    if wants_words and response_format in ("json", "text"):
        raise ApiError(
            f"word_timestamps has no effect on {response_format}: choose verbose_json, srt or vtt",
            param="word_timestamps",
            code="invalid_value",
        )
    given: dict[str, Any] = {
        "language": _language(fields),
        "initial_prompt": fields.text("prompt") or None,
        "hotwords": fields.text("hotwords") or None,
        "temperature": _temperature(fields),
        "mode": fields.choice("mode", get_args(Mode)),
        "vad": fields.flag("vad"),
        "loudness": fields.choice("loudness", get_args(Loudness)),
    }
    given = {name: value for name, value in given.items() if value is not None}
    given["token_logprobs"] = _wants_logprobs(fields, response_format)
    chunking = read_chunking(fields.text("chunking_strategy"), fields.chunking, given)
    with about("chunking_strategy"):
        return TranscribeOptions.of(task=task, word_timestamps=has_words or bool(wants_words), **{**given, **chunking})


def _language(fields: Fields) -> str | None:
    value = fields.text("language")
    with about("language"):
        return None if value is None else to_code(value)


def _temperature(fields: Fields) -> float | tuple[float, ...] | None:
    """As OpenAI has it, 0 stands for temperatures that rise as far as they must."""
    value = fields.text("temperature")
    if value is None:
        return None
    wanted = f"a number from 0 to {HOTTEST:g}"
    temperature = number("temperature", value, wanted)
    if not 0 <= temperature <= HOTTEST:  # not a number is none of these
        raise invalid("temperature", value, wanted)
    return temperature or TEMPERATURES


def number(name: str, value: str, wanted: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise invalid(name, value, wanted) from error


def _wants_logprobs(fields: Fields, response_format: ResponseFormat) -> bool:
    for value in fields.all("include"):
        if value != "logprobs":
            raise invalid("include", value, "logprobs")
        if response_format != "json":
            raise ApiError(
                f"include[]=logprobs needs response_format json, and it is {response_format}",
                param="include",
                code="unsupported_value",
            )
    return bool(fields.all("include"))


def _audio(fields: Fields, form: Form) -> tuple[PrepInput, Literal["file", "url"]]:
    url = fields.text("url")
    if len(form.files) + (url is not None) > 1:
        raise ApiError("more than one audio was given: send one `file`, or one `url`", param="file", code="too_many")
    if url is not None:
        if url_scheme(url) is None:
            raise invalid("url", url, "an http or https address")
        with about("url"):
            require_http(url)
        return url, "url"
    if not form.files:
        raise ApiError(
            "there is no `file`: send the audio as a file in a form, or its address as `url`",
            param="file",
            code="missing_required_parameter",
        )
    return form.files[0][1], "file"


def _model(fields: Fields) -> str:
    model = fields.text("model")
    if not model:
        raise ApiError(
            "`model` is missing: GET /v1/models has the name of the model here, and whisper-1 stands for it",
            param="model",
            code="missing_required_parameter",
        )
    return model


@contextmanager
def about(param: str) -> Iterator[None]:
    """What is wrong in here is wrong with this field."""
    try:
        yield
    except UsageError as error:
        raise ApiError(str(error), param=param, code="invalid_value") from error
