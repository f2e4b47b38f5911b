"""`POST /v1/audio/alignments`: when each word of a known text is spoken.

The text is a form field or, where it is longer than fields may be, a file named `text`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from choral import formats
from choral.errors import AudioError, UsageError
from choral.longform.alignment import check_text
from choral.options import Loudness, Priority
from choral.server.api_errors import CLIENT_CLOSED_REQUEST, ApiError, error_responses, to_api_error
from choral.server.direct_route import DirectRoute
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.forms import (
    FormModel,
    HttpUrl,
    SpokenLanguage,
    form_schema,
    form_values,
    option_field,
    pick_audio,
    single_value,
    to_options,
    validate,
)
from choral.server.quota import principal_of
from choral.server.responses import MEDIA_TYPES, TranscriptionBody
from choral.server.service import Service
from choral.server.speech_form import MAX_PROMPT_CHARACTERS, Text
from choral.server.text_file import take_text
from choral.server.tracing import span
from choral.server.upload import Form, read_form
from choral.serving.input_sources import OpenFile
from choral.transcript import Transcript

TEXT_FILE = "text"


class AlignmentForm(FormModel):
    model: Text = Field(min_length=1, description="a name from GET /v1/models")
    text: str = Field(description="the text that is spoken; a long one as a file of this name, in UTF-8")
    language: SpokenLanguage = Field(None, description="code or English name; detected when not given")
    response_format: Literal["verbose_json", "srt", "vtt"] = "verbose_json"
    url: Annotated[HttpUrl, Field(max_length=MAX_PROMPT_CHARACTERS)] | None = Field(
        None, description="URL of the audio, instead of `file`"
    )
    vad: bool | None = option_field("vad")
    loudness: Loudness | None = option_field("loudness")
    priority: Priority = Field("interactive", description="batch requests yield to interactive ones")


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["Choral"])

    async def align(request: Request) -> Response:
        return await _handle(service, request)

    content = {MEDIA_TYPES[name]: {"schema": {"type": "string"}} for name in ("srt", "vtt")}
    body = {"required": True, "content": {"multipart/form-data": {"schema": form_schema(AlignmentForm)}}}
    router.add_api_route(
        "/v1/audio/alignments",
        align,
        summary="Find when each word of a known text is spoken",
        route_class_override=DirectRoute,
        methods=["POST"],
        response_model=TranscriptionBody,
        responses={
            200: {"description": "the text with its times", "content": content},
            **error_responses(400, 401, 404, 408, 413, 415, 424, 429, 503, 507),
        },
        openapi_extra={"requestBody": body},
    )
    return router


async def _handle(service: Service, request: Request) -> Response:
    service.requests.require_capacity()
    async with AsyncExitStack() as stack:
        with service.uploads.admit_upload() as slot, span("read the upload"):
            form = await stack.enter_async_context(read_form(request, service.settings, slot))
        fields, audio, audio_param = await asyncio.to_thread(_read, form)
        service.names.resolve(fields.model)
        given = fields.model_dump(include={"language", "vad", "loudness"}, exclude_none=True)
        options = to_options(**given)
        service.require_supported(options, task_param="model", model=fields.model)
        principal = principal_of(request)
        try:
            transcript = await cancel_on_disconnect(
                request.scope,
                request.receive,
                service.transcribe(
                    audio,
                    options,
                    model=fields.model,
                    text=fields.text,
                    priority=fields.priority,
                    client_waits=True,
                    on_duration=principal.charge if principal.has_audio_limit else None,
                ),
            )
        except ClientClosedRequest:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except (AudioError, UsageError) as error:
            api_error = to_api_error(error)
            api_error.param = audio_param if isinstance(error, AudioError) else TEXT_FILE
            raise api_error from error
        return await asyncio.to_thread(_response, transcript, fields.response_format)


def _response(transcript: Transcript, name: Literal["verbose_json", "srt", "vtt"]) -> Response:
    media_type = MEDIA_TYPES.get(name, "application/json")
    is_json = media_type == "application/json"
    return Response(formats.render(transcript, name), media_type=media_type + ("" if is_json else "; charset=utf-8"))


def _read(form: Form) -> tuple[AlignmentForm, OpenFile | str, str]:
    """The fields with the text in them, the audio, and the field that it came in."""
    text, others = take_text(form, TEXT_FILE)
    values: dict[str, Any] = {
        name: single_value(name, given) for name, given in form_values(others, AlignmentForm).items()
    }
    if text is not None:
        values[TEXT_FILE] = text
    fields = validate(AlignmentForm, values)
    try:
        check_text(fields.text)
    except UsageError as error:
        raise ApiError(str(error), param=TEXT_FILE, code="invalid_value") from error
    audio, audio_param = pick_audio(others.files, fields.url)
    return fields, audio, audio_param
