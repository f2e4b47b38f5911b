"""`POST /v1/audio/diarization`: who speaks when, without a transcript."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, WithJsonSchema, model_validator
from starlette.responses import PlainTextResponse, Response

from choral import formats
from choral.diarization import Diarization
from choral.errors import AudioError, UsageError
from choral.options import Priority
from choral.server.api_errors import CLIENT_CLOSED_REQUEST, ApiError, error_responses, to_api_error
from choral.server.direct_route import DirectRoute
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.forms import (
    OPTIONS,
    SPEAKERS_SCHEMA,
    FormModel,
    HttpUrl,
    SpeakerNames,
    Speakers,
    form_schema,
    form_values,
    option_field,
    pick_audio,
    single_value,
    to_options,
    validate,
)
from choral.server.known_speakers import NAMES, REFERENCES, names_field, reference_clips, references_field
from choral.server.quota import principal_of
from choral.server.responses import Usage, json_response, usage_fields
from choral.server.service import Service
from choral.server.speech_form import MAX_PROMPT_CHARACTERS
from choral.server.tracing import span
from choral.server.upload import Form, read_form
from choral.serving.input_sources import OpenFile
from choral.speakers.reference_clips import ReferenceClip
from choral.transcript import Transcript


class DiarizationForm(FormModel):
    speakers: Annotated[Speakers, WithJsonSchema(SPEAKERS_SCHEMA)] | None = option_field("speakers")
    response_format: Literal["json", "rttm"] = "json"
    speaker_names: SpeakerNames = Field((), description=OPTIONS["speaker_names"].metadata["help"])
    known_speaker_names: list[str] = names_field()
    known_speaker_references: list[str] = references_field()
    embeddings: bool = Field(False, description="the embedding of each speaker's voice, in json")
    url: Annotated[HttpUrl, Field(max_length=MAX_PROMPT_CHARACTERS)] | None = Field(
        None, description="URL of the audio, instead of `file`"
    )
    priority: Priority = Field("interactive", description="batch requests yield to interactive ones")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.embeddings and self.response_format == "rttm":
            raise ApiError("rttm has no embeddings: omit one of them", param="embeddings", code="invalid_value")
        if self.references and self.speaker_names:
            text = f"speaker_names and {NAMES} both name the speakers: send one of them"
            raise ApiError(text, param="speaker_names", code="invalid_value")
        return self

    @property
    def references(self) -> tuple[ReferenceClip, ...]:
        return reference_clips(self.known_speaker_names, self.known_speaker_references)


class TurnBody(BaseModel):
    start: float
    end: float
    speaker: str


class SpeakerBody(BaseModel):
    name: str
    total_s: float
    embedding: list[float] | None = None


class SpanBody(BaseModel):
    start: float
    end: float


class DiarizationBody(BaseModel):
    """Turns of different speakers overlap where they speak at once."""

    duration: float
    speakers: list[SpeakerBody]
    turns: list[TurnBody]
    overlaps: list[SpanBody]
    usage: Usage


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["Choral"])

    async def diarize(request: Request) -> Response:
        return await _handle(service, request)

    body = {"required": True, "content": {"multipart/form-data": {"schema": form_schema(DiarizationForm)}}}
    router.add_api_route(
        "/v1/audio/diarization",
        diarize,
        summary="Find who speaks when",
        route_class_override=DirectRoute,
        methods=["POST"],
        response_model=DiarizationBody,
        responses={
            200: {"description": "turns and speakers", "content": {"text/plain": {"schema": {"type": "string"}}}},
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
        fields = _read_fields(form)
        audio, audio_param = pick_audio(form.files, fields.url)
        principal = principal_of(request)
        try:
            found = await cancel_on_disconnect(
                request.scope,
                request.receive,
                service.transcribe(
                    audio,
                    to_options(diarize=True, speakers=fields.speakers, speaker_names=fields.speaker_names),
                    wants_text=False,
                    references=fields.references,
                    priority=fields.priority,
                    client_waits=True,
                    on_duration=principal.charge if principal.has_audio_limit else None,
                ),
            )
        except ClientClosedRequest:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except (AudioError, UsageError) as error:
            api_error = to_api_error(error)
            api_error.param = audio_param if isinstance(error, AudioError) else REFERENCES
            raise api_error from error
        return await asyncio.to_thread(_response, found, fields, audio)


def _read_fields(form: Form) -> DiarizationForm:
    values: dict[str, Any] = {}
    for name, texts in form_values(form, DiarizationForm).items():
        field = name.removesuffix("[]")
        if field in (NAMES, REFERENCES):
            values.setdefault(field, []).extend(texts)
        else:
            values[name] = single_value(name, texts)
    return validate(DiarizationForm, values)


def _response(found: Transcript, fields: DiarizationForm, audio: OpenFile | str) -> Response:
    if fields.response_format == "rttm":
        name = audio.name if isinstance(audio, OpenFile) else urlsplit(audio).path
        return PlainTextResponse(formats.render(found, "rttm", recording=PurePosixPath(name).stem))
    hidden = () if fields.embeddings else ("embedding",)
    speakers = [{k: v for k, v in vars(speaker).items() if k not in hidden} for speaker in found.speakers]
    overlaps = Diarization(found.turns, found.speakers, found.duration).overlaps
    body: dict[str, Any] = {
        "duration": found.duration,
        "speakers": speakers,
        "turns": [vars(turn) for turn in found.turns],
        "overlaps": [{"start": start, "end": end} for start, end in overlaps],
        "usage": usage_fields(found),
    }
    return json_response(body)
