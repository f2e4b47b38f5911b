"""OpenAI's endpoints: transcriptions, translations and models."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from choral.errors import AudioError, UsageError
from choral.options import Task
from choral.server.api_errors import CLIENT_CLOSED_REQUEST, EVENT_STREAM, ApiError, error_responses, to_api_error
from choral.server.diarized_json import SpeakerLabels
from choral.server.direct_route import DirectRoute
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.forms import form_schema
from choral.server.known_speakers import REFERENCES
from choral.server.quota import principal_of
from choral.server.request_warnings import add_warnings
from choral.server.responses import (
    MEDIA_TYPES,
    EventStreamResponse,
    TranscriptionBody,
    TranscriptStream,
    transcript_response,
)
from choral.server.service import Service
from choral.server.speech_form import SpeechForm, SpeechRequest, read_speech_request
from choral.server.tracing import span
from choral.server.upload import read_form
from choral.transcript import Segment, Transcript


class ModelBody(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "choral"


class ModelListBody(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelBody]


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    created = int(time.time())

    async def transcribe(request: Request) -> Response:
        return await _handle_speech(service, request, "transcribe")

    async def translate(request: Request) -> Response:
        return await _handle_speech(service, request, "translate")

    speech = _speech_route()
    router.add_api_route("/v1/audio/transcriptions", transcribe, summary="Transcribe speech in its language", **speech)
    router.add_api_route("/v1/audio/translations", translate, summary="Translate speech to English text", **speech)

    @router.get("/v1/models", summary="List the models of this server", responses=error_responses(401))
    async def models() -> ModelListBody:
        return ModelListBody(data=[ModelBody(id=name, created=created) for name in service.names.all])

    @router.get("/v1/models/{model:path}", summary="Show a model", responses=error_responses(401, 404))
    async def model(model: str) -> ModelBody:
        service.names.resolve(model)
        return ModelBody(id=model, created=created)

    return router


def _speech_route() -> dict[str, Any]:
    """The OpenAPI description of a route that reads its form itself."""
    text = {"schema": {"type": "string"}}
    content = {MEDIA_TYPES[name]: text for name in ("text", "srt", "vtt")} | EVENT_STREAM
    body = {"required": True, "content": {"multipart/form-data": {"schema": form_schema(SpeechForm)}}}
    errors = error_responses(400, 401, 404, 408, 413, 415, 424, 429, 503, 507)
    return {
        "route_class_override": DirectRoute,
        "methods": ["POST"],
        "response_model": TranscriptionBody,
        "responses": {200: {"description": "the transcript", "content": content}, **errors},
        "openapi_extra": {"requestBody": body},
    }


async def _handle_speech(service: Service, request: Request, task: Task) -> Response:
    service.requests.require_capacity()
    async with AsyncExitStack() as stack:
        with service.uploads.admit_upload() as slot, span("read the upload"):
            form = await stack.enter_async_context(read_form(request, service.settings, slot))
        speech = read_speech_request(form, task, unknown_fields=service.settings.unknown_fields)
        model = service.models.info(speech.form.model)
        service.require_supported(speech.options, task_param="model", model=model.id)
        to_tokens = model.text_tokens if speech.options.token_logprobs else None
        try:
            if not speech.form.is_streamed:
                work = _transcribe(service, request, speech, None)
                transcript = await cancel_on_disconnect(request.scope, request.receive, work)
                tokens = to_tokens and [token for segment in transcript.segments for token in to_tokens(segment)]
                return add_warnings(transcript_response(transcript, speech, tokens), speech.warnings)
            upload = stack.pop_all()  # stays open until the stream has ended

            async def transcribe(on_segment: Callable[[Segment], None]) -> Transcript:
                async with upload:
                    return await _transcribe(service, request, speech, on_segment)

            labels = SpeakerLabels(speech.form.speaker_labels) if speech.options.diarize else None
            stream = TranscriptStream(transcribe, to_tokens, labels, has_languages=speech.form.has_languages)
            await cancel_on_disconnect(request.scope, request.receive, stream.start())
        except ClientClosedRequest:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return add_warnings(EventStreamResponse(stream), speech.warnings)


async def _transcribe(
    service: Service, request: Request, speech: SpeechRequest, on_segment: Callable[[Segment], None] | None
) -> Transcript:
    principal = principal_of(request)
    try:
        return await service.transcribe(
            speech.audio,
            speech.options,
            model=speech.form.model,
            references=speech.form.references,
            priority=speech.form.priority,
            client_waits=True,
            on_segment=on_segment,
            on_duration=principal.charge if principal.has_audio_limit else None,
        )
    except AudioError as error:
        api_error = to_api_error(error)
        api_error.param = speech.audio_param
        raise api_error from error
    except UsageError as error:
        if not speech.form.known_speaker_names:
            raise
        raise ApiError(str(error), param=REFERENCES, code="invalid_value") from error
