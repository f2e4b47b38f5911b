"""`POST /v1/realtime/client_secrets`, and `/v1/realtime/transcription_sessions` of OpenAI's beta."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field, TypeAdapter
from starlette.responses import Response

from choral.server.api_errors import ApiError, error_responses
from choral.server.quota import principal_of
from choral.server.realtime.client_events import parse_object, validate_known
from choral.server.realtime.client_secrets import DEFAULT_LIFETIME_S, MAX_LIFETIME_S, MIN_LIFETIME_S
from choral.server.realtime.server_events import new_id
from choral.server.realtime.session_config import (
    BetaSession,
    SchemaModel,
    ServedModel,
    SessionConfig,
    TranscriptionSession,
)
from choral.server.realtime.session_warnings import session_warnings
from choral.server.request_body import limited_body
from choral.server.request_warnings import add_warnings, unknown_fields_warning
from choral.server.service import Service

MAX_BODY_BYTES = 16 * 1024  # the configuration is kept as long as the secret


class ExpiresAfter(SchemaModel):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)] = DEFAULT_LIFETIME_S


class ClientSecretRequest(SchemaModel):
    session: TranscriptionSession = TranscriptionSession(type="transcription")
    expires_after: ExpiresAfter = ExpiresAfter()


class BetaSecretOptions(SchemaModel):
    expires_after: ExpiresAfter = ExpiresAfter()


class BetaSecretRequest(BetaSession):
    client_secret: BetaSecretOptions = BetaSecretOptions()


SECRET_ADAPTER: TypeAdapter[ClientSecretRequest] = TypeAdapter(ClientSecretRequest)
BETA_ADAPTER: TypeAdapter[BetaSecretRequest] = TypeAdapter(BetaSecretRequest)


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    errors = error_responses(400, 401, 408, 413, 429, 503)

    @router.post(
        "/v1/realtime/client_secrets",
        summary="Create a short-lived key for live sessions",
        responses=errors,
        openapi_extra=_json_body(ClientSecretRequest),
    )
    async def client_secret(request: Request) -> Response:
        fields = await _read_object(service, request)
        asked, unknown = validate_known(SECRET_ADAPTER, fields, _served_model(service, fields))
        config = SessionConfig.of_model(service.model_id).updated(asked.session)
        value, secret = service.realtime.client_secrets.create(
            _key_hash(request), config, is_beta=False, lifetime_s=asked.expires_after.seconds
        )
        session = {**config.to_json(new_id("sess"), is_beta=False), "expires_at": secret.expires_at}
        body = {"value": value, "expires_at": secret.expires_at, "session": session}
        return _response(body, asked.session, unknown)

    @router.post(
        "/v1/realtime/transcription_sessions",
        summary="Create a short-lived key for live sessions, in the beta dialect",
        responses=errors,
        openapi_extra=_json_body(BetaSecretRequest),
    )
    async def transcription_session(request: Request) -> Response:
        fields = await _read_object(service, request)
        asked, unknown = validate_known(BETA_ADAPTER, fields, _served_model(service, fields))
        config = SessionConfig.of_model(service.model_id).updated(asked)
        value, secret = service.realtime.client_secrets.create(
            _key_hash(request), config, is_beta=True, lifetime_s=asked.client_secret.expires_after.seconds
        )
        session = config.to_json(new_id("sess"), is_beta=True)
        body = {**session, "client_secret": {"value": value, "expires_at": secret.expires_at}}
        return _response(body, asked, unknown)

    return router


def _served_model(service: Service, fields: dict[str, Any]) -> ServedModel:
    """The model that the configuration names; if it names none, or an unknown one, the default model."""
    names = [fields.get("input_audio_transcription"), _nested(fields, "session", "audio", "input", "transcription")]
    asked = [name["model"] for name in names if isinstance(name, dict) and isinstance(name.get("model"), str)]
    model = asked[0] if asked and asked[0] in service.names else None
    return ServedModel(service.names, service.models.info(model).tokenizer)


def _nested(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _key_hash(request: Request) -> str | None:
    key = principal_of(request).key
    return None if key is None else key.sha256


async def _read_object(service: Service, request: Request) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    body = bytearray()
    with service.uploads.admit_upload() as slot:
        async for piece in limited_body(request, service.settings, slot):
            body += piece
            if len(body) > MAX_BODY_BYTES:
                text = f"the JSON is larger than {MAX_BODY_BYTES // 1024} KiB: shorten it"
                raise ApiError(text, status=413, code="request_too_large")
    return parse_object(body.decode("utf-8", "replace") or "{}")


def _response(body: dict[str, Any], session: TranscriptionSession | BetaSession, unknown: list[str]) -> Response:
    warnings = [f"{each.param}: {each.message}" for each in session_warnings(session)]
    return add_warnings(JSONResponse(body), [*warnings, *([unknown_fields_warning(unknown)] if unknown else [])])


def _json_body(model: type[SchemaModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "title": schema["title"]}}}}}
