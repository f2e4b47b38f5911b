"""Request forms as pydantic models: one definition validates the fields and describes them in the OpenAPI document.

Nothing is accepted and ignored: an unknown, repeated or invalid field is an `ApiError` that names it. Options of the
transcription take their type, range and description from `TranscribeOptions`.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from choral.errors import UsageError
from choral.model.languages import CODES, to_code
from choral.options import MAX_LANGUAGES, MAX_NAME_CHARACTERS, MAX_SPEAKERS, TranscribeOptions
from choral.remote.urls import redact_url, url_problem
from choral.server.api_errors import ApiError
from choral.server.upload import Form
from choral.serving.input_sources import OpenFile

OPTIONS = {field.name: field for field in dataclasses.fields(TranscribeOptions)}
MAX_SHOWN_CHARACTERS = 100  # of a client's input, in messages
MAX_ERRORS = 100
AUTO = "auto"
SPEAKERS_SCHEMA = {"type": "string", "pattern": "^[0-9]{1,3}(-[0-9]{1,3})?$"}  # in a form


class FormModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


Model = TypeVar("Model", bound=FormModel)


def validate(model: type[Model], values: Mapping[str, Any], *, parent: str | None = None) -> Model:
    """The form with these values; `parent` is the field that holds the whole object, if any."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _to_api_error(model, error, parent) from error


def validate_json(model: type[Model], text: bytes | bytearray | str, *, parent: str | None = None) -> Model:
    """The form in a JSON object, whose values must have the right JSON types."""
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise _to_api_error(model, error, parent) from error


def _to_api_error(model: type[FormModel], error: ValidationError, parent: str | None) -> ApiError:
    """The first error, with pydantic's own description of what is expected."""
    if error.error_count() > MAX_ERRORS:  # listing them would block the event loop
        text = f"{error.error_count():,} values are invalid; the fields are {', '.join(_field_names(model))}"
        return ApiError(text, param=parent, code="invalid_value")
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] == "too_long"), errors[0])  # a list may have other types too
    if first["type"] == "json_invalid":
        text = f"{parent or 'the body'} is not valid JSON: {first['ctx']['error']}"
        return ApiError(text, param=parent, code="invalid_json")
    if not first["loc"]:
        return ApiError("the JSON must be an object", param=parent, code="invalid_json")
    field = str(first["loc"][0])
    name = field if parent is None else f"{parent}.{field}"
    param = (parent or field)[:MAX_SHOWN_CHARACTERS]
    if first["type"] == "extra_forbidden":
        return unknown_field(model, name, param, has_file=parent is None)
    if first["type"] in ("missing", "string_too_short"):
        info = next(info for key, info in model.model_fields.items() if field in (key, info.alias))
        return ApiError(f"`{name}` is missing: {info.description}", param=param, code="missing_required_parameter")
    text = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "string_too_long":
        return ApiError(
            f"`{name}` has {len(first['input']):,} characters: {text}", param=param, code="string_above_max_length"
        )
    if first["type"] == "too_long":
        text = f"`{name}` has too many values: send at most {first['ctx']['max_length']:,}"
        return ApiError(text, param=param, code="array_above_max_length")
    value = str(first["input"])[:MAX_SHOWN_CHARACTERS]
    return ApiError(f"`{name}` is {value!r}: {text}", param=param, code="invalid_value")


def _field_names(model: type[FormModel]) -> list[str]:
    return [info.alias or key for key, info in model.model_fields.items()]


def unknown_field(model: type[FormModel], name: str, param: str, *, has_file: bool = True) -> ApiError:
    known = ["file"] * has_file + _field_names(model)
    return ApiError(
        f"unknown field `{name[:MAX_SHOWN_CHARACTERS]}`; the fields are {', '.join(known)}",
        param=param,
        code="unknown_parameter",
    )


def _not_auto(value: Any) -> Any:
    """Some clients write `auto`, or nothing, for a language that is to be detected."""
    return None if isinstance(value, str) and value.strip().lower() in ("", AUTO) else value


def _check_language(value: str, info: ValidationInfo) -> str:
    try:
        return to_code(value)
    except UsageError as error:
        raise ApiError(str(error), param=info.field_name, code="invalid_value") from error


def _check_url(value: str, info: ValidationInfo) -> str:
    if problem := url_problem(value):
        url = redact_url(value)[:MAX_SHOWN_CHARACTERS]
        raise ApiError(f"`{info.field_name}` is {url!r}; {problem}", param=info.field_name, code="invalid_value")
    return value


def _read_speakers(value: Any, info: ValidationInfo) -> Any:
    """In a form, a number or two with a dash between them; in JSON, a number or a list of two."""
    if info.mode == "json" or not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if not re.fullmatch(SPEAKERS_SCHEMA["pattern"], value, re.ASCII):
        text = f"`speakers` is {value[:MAX_SHOWN_CHARACTERS]!r}: it must be a number, or two as in 2-5"
        raise ApiError(text, param="speakers", code="invalid_value")
    numbers = tuple(int(part) for part in value.split("-"))
    return numbers if len(numbers) > 1 else numbers[0]


def _read_names(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


# English names are accepted too.
Language = Annotated[
    str, Field(max_length=MAX_NAME_CHARACTERS), AfterValidator(_check_language), WithJsonSchema({"enum": list(CODES)})
]
SpokenLanguage = Annotated[Language | None, BeforeValidator(_not_auto)]
Languages = Annotated[tuple[Language, ...], Field(max_length=MAX_LANGUAGES, fail_fast=True)]
_SpeakerCount = Annotated[int, Field(ge=1, le=MAX_SPEAKERS)]
Speakers = Annotated[
    _SpeakerCount | Annotated[tuple[_SpeakerCount, ...], Field(max_length=2)], BeforeValidator(_read_speakers)
]
SpeakerNames = Annotated[
    tuple[str, ...],
    Field(max_length=MAX_SPEAKERS),
    BeforeValidator(_read_names),
    WithJsonSchema({"type": "string", "examples": ["Anna,Ben"]}),
]
HttpUrl = Annotated[str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})]


# --- options ---


def option_field(name: str) -> Any:
    """An optional field with the description of this option."""
    return Field(None, description=OPTIONS[name].metadata["help"])


def option_fields(*left_out: str) -> dict[str, Any]:
    """All options as fields of a model, with their types, ranges, lengths and defaults."""
    hints = get_type_hints(TranscribeOptions)
    return {
        name: (_bounded(hints[name], field.metadata), Field(field.default, description=field.metadata["help"]))
        for name, field in OPTIONS.items()
        if name not in left_out
    }


def _bounded(hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The type hint with the range of the numbers in it, and the most characters of a text or values of a list.

    A list is validated up to its first wrong value, because each one costs time and a part of the error.
    """
    within, max_length = metadata["within"], metadata.get("max_length")
    if hint in (int, float) and within is not None:
        return Annotated[hint, Field(ge=within[0], le=within[1])]
    if hint is str and max_length is not None:
        return Annotated[hint, Field(max_length=max_length)]
    if get_origin(hint) is tuple:
        values: Any = tuple[_bounded(get_args(hint)[0], metadata), ...]  # type: ignore[misc]
        return Annotated[values, Field(max_length=max_length, fail_fast=True)]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_bounded(kind, metadata) for kind in get_args(hint))]  # noqa: UP007
    return hint


def to_options(**values: Any) -> TranscribeOptions:
    """`TranscribeOptions` with these values. Its messages about values that do not fit together begin with a field."""
    try:
        return TranscribeOptions.of(**values)
    except UsageError as error:
        first_word = re.split(r"\W", str(error), maxsplit=1)[0]
        param = first_word if first_word in OPTIONS else None
        raise ApiError(str(error), param=param, code="invalid_value") from error


# --- forms of an upload ---


def form_values(form: Form, model: type[FormModel]) -> dict[str, list[str]]:
    """The texts of a form by field name; files under any other name than `file` are refused."""
    values: dict[str, list[str]] = {}
    for name, text in form.fields:
        if name == "file":
            raise ApiError(
                "`file` was sent as text: send it as a file with a filename", param="file", code="invalid_file"
            )
        values.setdefault(name, []).append(text)
    for name, _ in form.files:
        if name != "file":
            raise unknown_field(model, name, name[:MAX_SHOWN_CHARACTERS])
    return values


def single_value(name: str, texts: list[str]) -> str:
    if len(texts) > 1:
        raise ApiError(f"`{name}` was given twice: send it once", param=name, code="duplicate_field")
    return texts[0]


def pick_audio(
    files: tuple[tuple[str, OpenFile], ...], url: str | None
) -> tuple[OpenFile | str, Literal["file", "url"]]:
    """The one audio of a request, and the field it came in."""
    if len(files) + (url is not None) > 1:
        raise ApiError("more than one audio was sent: send one `file`, or one `url`", param="file", code="too_many")
    if url is not None:
        return url, "url"
    if not files:
        raise ApiError(
            "there is no audio: send it as `file` in a multipart form, or its URL as `url`",
            param="file",
            code="missing_required_parameter",
        )
    return files[0][1], "file"


class _FormSchema(GenerateJsonSchema):
    """Form fields are left out rather than null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def form_schema(model: type[FormModel]) -> dict[str, Any]:
    """The JSON schema of a multipart form: the fields of the model, and the file."""
    schema = model.model_json_schema(schema_generator=_FormSchema)
    file = {"type": "string", "format": "binary", "description": "the audio, in nearly any container and codec"}
    fields: dict[str, dict[str, Any]] = {"file": file, **schema["properties"]}
    for field in fields.values():
        if field.get("default", ...) is None:
            del field["default"]
    return {**schema, "properties": fields}
