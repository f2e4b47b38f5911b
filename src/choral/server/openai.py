"""OpenAI's endpoints for audio and models: each reads a form, asks the service, and answers in OpenAI's shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from fastapi import APIRouter, Request
from starlette.responses import Response

from choral.errors import AudioError
from choral.server import openapi
from choral.server.api_errors import CLIENT_CLOSED_REQUEST, ApiError, to_api_error
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.quota import principal_of
from choral.server.responses import transcript_response
from choral.server.service import Service
from choral.server.speech_form import SpeechRequest, read_request
from choral.server.streaming import EventStream, Streaming
from choral.server.tracing import span
from choral.server.upload import read_form
from choral.types import Segment, Task, Transcript

ALIAS = "whisper-1"  # what OpenAI's own clients ask for: here it is the model that was loaded


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    started = int(time.time())

    @router.post("/v1/audio/transcriptions", **openapi.speech("Speech to text, in the language that is spoken"))
    async def transcribe(request: Request) -> Response:
        return await _speech(service, request, "transcribe")

    @router.post("/v1/audio/translations", **openapi.speech("Speech in any language to English text"))
    async def translate(request: Request) -> Response:
        return await _speech(service, request, "translate")

    @router.get("/v1/models", **openapi.models("The models of this server"))
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [_model_fields(name, started) for name in model_names(service)]}

    @router.get("/v1/models/{model:path}", **openapi.model("One of them"))
    async def model(model: str) -> dict[str, object]:
        require_model(service, model)
        return _model_fields(model, started)

    return router


def model_names(service: Service) -> tuple[str, str]:
    return service.model_id, ALIAS


def _model_fields(name: str, started: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": started, "owned_by": "choral"}


def require_model(service: Service, name: str) -> None:
    if name not in model_names(service):
        raise ApiError(
            f"there is no model {name[:100]!r} here: {' and '.join(model_names(service))} are names of the one that is",
            status=404,
            param="model",
            code="model_not_found",
        )


async def _speech(service: Service, request: Request, task: Task) -> Response:
    service.requests.require_capacity()
    async with AsyncExitStack() as stack:
        with service.uploads.admit(), span("read the upload"):
            form = await stack.enter_async_context(read_form(request, service.settings))
        speech = read_request(form, task)
        _require_fitting(service, speech)
        spell = service.model.text_tokens if speech.options.token_logprobs else None
        if not speech.is_stream:
            try:
                transcript = await cancel_on_disconnect(request.receive, _transcript(service, request, speech, None))
            except ClientClosedRequest:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            tokens = spell and [token for segment in transcript.segments for token in spell(segment)]
            return transcript_response(transcript, speech, tokens)
        own = stack.pop_all()

        async def work(on_segment: Callable[[Segment], None]) -> Transcript:
            async with own:
                return await _transcript(service, request, speech, on_segment)

        streaming = Streaming(work, spell)
        try:
            await cancel_on_disconnect(request.receive, streaming.begin())
        except ClientClosedRequest:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return EventStream(streaming)


async def _transcript(
    service: Service, request: Request, speech: SpeechRequest, on_segment: Callable[[Segment], None] | None
) -> Transcript:
    try:
        return await service.transcribe(
            speech.audio,
            speech.options,
            priority=speech.priority,
            on_segment=on_segment,
            on_duration=principal_of(request).charge,
        )
    except AudioError as error:
        problem = to_api_error(error)
        problem.param = speech.audio_param
        raise problem from error


def _require_fitting(service: Service, speech: SpeechRequest) -> None:
    require_model(service, speech.model)
    if service.model.is_multilingual:
        return
    if speech.options.task == "translate":
        raise ApiError(
            f"{service.model_id} knows only English and cannot translate: serve a multilingual model",
            param="model",
            code="unsupported_value",
        )
    if speech.options.language not in (None, "en"):
        raise ApiError(
            f"{service.model_id} knows only English: leave out `language`, or serve a multilingual model",
            param="language",
            code="unsupported_value",
        )
