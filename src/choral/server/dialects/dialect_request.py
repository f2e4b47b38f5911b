"""What the HTTP requests of all dialects have in common: admission, the upload, the transcription, a client that left.

A dialect's fields are lenient: those that are unknown here pass, because clients of other servers send many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, get_origin

from fastapi import APIRouter
from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from choral.errors import AudioError
from choral.options import TranscribeOptions
from choral.server.api_errors import CLIENT_CLOSED_REQUEST, ApiError, error_responses, to_api_error
from choral.server.direct_route import DirectRoute
from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect
from choral.server.forms import FormModel, validate
from choral.server.quota import principal_of
from choral.server.request_warnings import unknown_fields_warning
from choral.server.service import Service
from choral.server.tracing import span
from choral.server.upload import Form, read_form
from choral.serving.input_sources import OpenFile, ServiceAudio
from choral.transcript import Transcript

Answer = Callable[[Service, Request], Awaitable[Response]]


class LenientFields(FormModel):
    model_config = ConfigDict(extra="ignore")


Fields = TypeVar("Fields", bound=LenientFields)


def read_fields(model: type[Fields], pairs: Sequence[tuple[str, str]]) -> tuple[Fields, tuple[str, ...]]:
    """The fields, and a warning about unknown ones. An empty field counts as left out; the last of a name wins."""
    values: dict[str, Any] = {}
    lists = {name for name, info in model.model_fields.items() if get_origin(info.annotation) is list}
    for name, text in pairs:
        if text and name in lists:
            values.setdefault(name, []).append(text)
        elif text:
            values[name] = text
    unknown = [name for name in values if name not in model.model_fields]
    return validate(model, values), (unknown_fields_warning(unknown),) if unknown else ()


@asynccontextmanager
async def received_form(service: Service, request: Request) -> AsyncIterator[Form]:
    """The form, once the request is admitted; its files are closed on exit."""
    service.requests.require_capacity()
    async with AsyncExitStack() as stack:
        with service.uploads.admit_upload() as slot, span("read the upload"):
            form = await stack.enter_async_context(read_form(request, service.settings, slot))
        yield form


def only_file(form: Form, name: str) -> OpenFile:
    files = [file for field, file in form.files if field == name]
    if len(files) != 1:
        text = f"send the audio as one file in the field `{name}` of a multipart form"
        raise ApiError(text, param=name, code="missing_required_parameter")
    return files[0]


async def transcribe_for(
    service: Service,
    request: Request,
    audio: ServiceAudio,
    options: TranscribeOptions,
    *,
    audio_param: str,
    model: str | None = None,
    max_charged_s: float = float("inf"),
) -> Transcript:
    """The transcript; `ClientClosedRequest` if the client leaves, whose body must have been read to its end."""
    service.require_supported(options, task_param="task", model=model)
    principal = principal_of(request)

    def charge(duration_s: float) -> None:
        principal.charge(min(duration_s, max_charged_s))

    work = service.transcribe(
        audio, options, model=model, client_waits=True, on_duration=charge if principal.has_audio_limit else None
    )
    try:
        return await cancel_on_disconnect(request.scope, request.receive, work)
    except AudioError as error:
        api_error = to_api_error(error)
        api_error.param = audio_param
        raise api_error from error


def add_route(
    router: APIRouter, service: Service, path: str, answer: Answer, summary: str, openapi: Mapping[str, Any]
) -> None:
    """A POST route that reads its own body; `openapi` describes that."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(service, request)
        except ClientClosedRequest:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    router.add_api_route(
        path,
        endpoint,
        summary=summary,
        route_class_override=DirectRoute,
        methods=["POST"],
        response_model=None,
        responses=error_responses(400, 401, 404, 408, 413, 415, 424, 429, 503, 507),
        openapi_extra=dict(openapi),
    )


def file_form(name: str, fields: type[LenientFields] | None = None) -> dict[str, Any]:
    """The OpenAPI description of a form with one file and these fields."""
    properties = fields.model_json_schema()["properties"] if fields is not None else {}
    file = {"type": "string", "format": "binary"}
    schema = {"type": "object", "required": [name], "properties": {name: file, **properties}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def query_parameters(fields: type[LenientFields]) -> list[dict[str, Any]]:
    properties = fields.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
