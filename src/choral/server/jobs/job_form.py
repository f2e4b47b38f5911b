"""What a caller asks for when it submits a job: audio or its address, every option by its name, priority and callback.

A form carries values as text, JSON as they are. An unknown field, a wrong value or one that came twice is a `ApiError`
that names it; a field of a form that is empty was left out.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from starlette.requests import Request

from choral.audio.prep.inputs import OpenFile
from choral.errors import UsageError
from choral.model.languages import to_code
from choral.remote.urls import redact_url, require_http, url_scheme
from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings
from choral.server.speech_form import FLAGS, about, invalid, number
from choral.server.upload import Form, counted, read_form
from choral.types import Priority, TranscribeOptions

OPTIONS = {field.name: field for field in dataclasses.fields(TranscribeOptions)}
HINTS = get_type_hints(TranscribeOptions)
OWN = ("url", "priority", "callback")
JSON_BYTES = 2**20


@dataclass(frozen=True)
class JobForm:
    audio: OpenFile | str  # open until the request has been answered, or an address
    options: TranscribeOptions
    priority: Priority
    callback: str | None

    @property
    def name(self) -> str:
        return redact_url(self.audio) if isinstance(self.audio, str) else self.audio.name


@asynccontextmanager
async def read_job_form(request: Request, settings: ServerSettings) -> AsyncIterator[JobForm]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        yield _order(await _read_json(request, settings), None)
    else:
        async with read_form(request, settings) as form:
            yield _order(_from_texts(form), _file(form))


async def _read_json(request: Request, settings: ServerSettings) -> dict[str, Any]:
    body = bytearray()
    async for piece in counted(request, settings):
        body += piece
        if len(body) > JSON_BYTES:
            raise ApiError("the JSON is larger than 1 MiB: send audio in a form", status=413, code="request_too_large")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the JSON cannot be read: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError("the JSON must be an object with `url` and options", code="invalid_json")
    return fields


def _file(form: Form) -> OpenFile | None:
    for name, _ in form.files:
        if name != "file":
            raise _unknown(name)
    if len(form.files) > 1:
        raise ApiError("more than one file was sent: submit a job for each", param="file", code="too_many")
    return form.files[0][1] if form.files else None


def _from_texts(form: Form) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, text in form.fields:
        if name == "file":
            raise ApiError("`file` came as text: send it as a file, with a filename", param="file", code="invalid_file")
        if name not in OPTIONS and name not in OWN:
            raise _unknown(name)
        if name in fields:
            raise ApiError(f"`{name}` was given twice: give it once", param=name, code="duplicate_field")
        fields[name] = _value(name, text) if name in OPTIONS and text else text or None
    return {name: value for name, value in fields.items() if value is not None}


def _value(name: str, text: str) -> Any:
    """The text of a form as what the option is; words and choices stay as they are."""
    hint = HINTS[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if bool in kinds:
        if text.lower() not in FLAGS:
            raise invalid(name, text, "true or false")
        return FLAGS[text.lower()]
    lists = [kind for kind in kinds if get_origin(kind) is tuple]
    if lists:
        element = get_args(lists[0])[0]
        return tuple(_number(name, part, element) for part in text.split(","))
    if str in kinds or any(get_origin(kind) is Literal for kind in kinds):
        return text
    return _number(name, text, kinds[0])


def _number(name: str, text: str, kind: type) -> float | int:
    if kind is int:
        try:
            return int(text)
        except ValueError as error:
            raise invalid(name, text, "a whole number") from error
    return number(name, text, "a number")


def _order(fields: Mapping[str, Any], file: OpenFile | None) -> JobForm:
    for name in fields:
        if name not in OPTIONS and name not in OWN:
            raise _unknown(name)
    options = {name: value for name, value in fields.items() if name in OPTIONS}
    priority = fields.get("priority", "interactive")
    if priority not in get_args(Priority):
        raise invalid("priority", str(priority), f"one of {', '.join(get_args(Priority))}")
    return JobForm(_audio(fields, file), _options(options), priority, _callback(fields.get("callback")))


def _options(given: dict[str, Any]) -> TranscribeOptions:
    try:
        options = TranscribeOptions.of(**given)
    except UsageError as error:
        first_word = str(error).partition(" ")[0].rstrip(":")
        param = first_word if first_word in OPTIONS else None
        raise ApiError(str(error), param=param, code="invalid_value") from error
    with about("language"):
        return options if options.language is None else dataclasses.replace(options, language=to_code(options.language))


def _audio(fields: Mapping[str, Any], file: OpenFile | None) -> OpenFile | str:
    url = fields.get("url")
    if (url is None) == (file is None):
        missing = "there is no audio" if file is None else "both were given"
        raise ApiError(f"{missing}: send one `file` in a form, or one `url`", param="file", code="missing_or_twice")
    return file if file is not None else _address("url", url)


def _callback(given: Any) -> str | None:
    return None if given is None else _address("callback", given)


def _address(name: str, given: Any) -> str:
    if url_scheme(given) is None:
        raise invalid(name, str(given), "an http or https address")
    with about(name):
        require_http(given)
    return str(given)


def _unknown(name: str) -> ApiError:
    known = ", ".join(("file", *OWN, *OPTIONS))
    return ApiError(f"unknown field `{name[:100]}`; the fields are {known}", param=name[:100], code="unknown_parameter")
