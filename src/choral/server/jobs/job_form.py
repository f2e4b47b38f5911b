"""The form that submits a job: a file or its URL, every option by name, priority and callback.

A multipart form carries values as text (lists separated by commas, voices as JSON, empty fields count as left out);
JSON carries them with their types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field, create_model
from starlette.requests import Request

from choral.errors import UsageError
from choral.jobs.request import check_job_text
from choral.options import Priority, TranscribeOptions
from choral.remote.urls import redact_url
from choral.server.admission import UploadSlot
from choral.server.api_errors import ApiError
from choral.server.forms import (
    OPTIONS,
    SPEAKERS_SCHEMA,
    FormModel,
    HttpUrl,
    Languages,
    Speakers,
    SpokenLanguage,
    form_schema,
    form_values,
    option_field,
    option_fields,
    pick_audio,
    single_value,
    to_options,
    validate,
    validate_json,
)
from choral.server.jobs.job_store import NewJob
from choral.server.request_body import limited_body
from choral.server.settings import ServerSettings
from choral.server.speech_form import Text
from choral.server.text_file import take_text
from choral.server.upload import Form, content_type, read_form

MAX_JSON_BYTES = 256 * 1024
ALIGN = "align"


class _JobFields(FormModel):
    url: HttpUrl | None = Field(None, description="URL of the audio, instead of `file`")
    model: Text | None = Field(None, description="a model of this server; the default one when not given")
    priority: Priority = Field("interactive", description="batch jobs yield to interactive ones")
    callback: HttpUrl | None = Field(None, description="URL that receives a POST when the job has ended")
    align: str | None = Field(None, description="a text to align with the audio; a long one as a file of this name")
    language: SpokenLanguage = option_field("language")
    languages: Languages = Field((), description=OPTIONS["languages"].metadata["help"])
    speakers: Speakers | None = option_field("speakers")


JobForm = create_model("JobForm", __base__=_JobFields, **option_fields("language", "languages", "speakers"))
LISTS = tuple(name for name, field in OPTIONS.items() if isinstance(field.default, tuple))


@asynccontextmanager
async def read_new_job(
    request: Request, settings: ServerSettings, slot: UploadSlot, job_id: str
) -> AsyncIterator[NewJob]:
    """The job; its file is open inside the context."""
    if content_type(request) == "application/json":
        yield _new_job(job_id, await _read_json(request, settings, slot), None)
    else:
        async with read_form(request, settings, slot) as form:
            text, form = await asyncio.to_thread(take_text, form, ALIGN)
            given = {} if text is None else {ALIGN: text}
            yield _new_job(job_id, validate(JobForm, _form_fields(form) | given), form)


async def _read_json(request: Request, settings: ServerSettings, slot: UploadSlot) -> _JobFields:
    body = bytearray()
    async for piece in limited_body(request, settings, slot):
        body += piece
        if len(body) > MAX_JSON_BYTES:
            raise ApiError(
                "the JSON is larger than 256 KiB: send audio in a form", status=413, code="request_too_large"
            )
    return validate_json(JobForm, body)


def _form_fields(form: Form) -> dict[str, Any]:
    fields = {name: single_value(name, texts) for name, texts in form_values(form, JobForm).items()}
    return {name: _form_value(name, text) for name, text in fields.items() if text}


def _form_value(name: str, text: str) -> Any:
    if name == "voices":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ApiError("`voices` is not valid JSON", param=name, code="invalid_json") from error
    return text.split(",") if name in LISTS else text


def _new_job(job_id: str, fields: _JobFields, form: Form | None) -> NewJob:
    audio, _ = pick_audio(() if form is None else form.files, fields.url)
    options = to_options(**fields.model_dump(include=set(OPTIONS), exclude_unset=True))
    if fields.align is not None:
        require_alignable(fields.align, options)
    return NewJob(
        id=job_id,
        audio=audio,
        name=redact_url(audio) if isinstance(audio, str) else audio.name,
        options=options,
        priority=fields.priority,
        callback=fields.callback,
        model=fields.model,
        align=fields.align,
    )


def require_alignable(text: str, options: TranscribeOptions) -> None:
    """Refuse now what would be a failed job."""
    try:
        check_job_text(text, options)
    except UsageError as error:
        raise ApiError(str(error), param=ALIGN, code="invalid_value") from error


def request_body() -> dict[str, Any]:
    """The request body for the OpenAPI document: a multipart form, or JSON with a URL."""
    form = form_schema(JobForm)
    for name in LISTS:
        form["properties"][name] = {"type": "string", "description": OPTIONS[name].metadata["help"]}
    form["properties"]["voices"] = {"type": "string", "description": "an embedding for each name, as JSON"}
    form["properties"]["speakers"] = SPEAKERS_SCHEMA | {"description": OPTIONS["speakers"].metadata["help"]}
    json_schema = {**JobForm.model_json_schema(), "required": ["url"]}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": json_schema}}
    return {"requestBody": {"required": True, "content": content}}
