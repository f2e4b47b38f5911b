"""Errors as HTTP responses in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

OpenAI's clients turn these into their typed exceptions. This is the server's only error boundary: a `ChoralError`
becomes a response with its HTTP status; any other exception is logged in full and the client gets a bare 500.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from choral.errors import AudioError, ChoralError, DownloadFailed, FetchFailed, NotAudio, QueueFull

log = logging.getLogger("choral.server")
# Where OpenAI's status differs; a client's URL that cannot be fetched is not a failure of this server, and the networks
# of diarization that could not be downloaded when they were first needed may be later.
STATUSES: dict[type[ChoralError], int] = {NotAudio: 400, FetchFailed: 424, DownloadFailed: 503}
FIRST_SERVER_STATUS = 500
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the response
DEFAULT_RETRY_S = 5


# The descriptions of error responses in the OpenAPI document.
DESCRIPTIONS = {
    400: "a field or the audio is invalid; `param` names it",
    401: "the API key is missing or invalid",
    403: "the request comes from a page of another site, or this server does not fetch from the host in `url`",
    404: "no such model or job, or nothing at `url`",
    408: "the upload stalled or took too long",
    409: "the job has not ended yet",
    410: "the job was cancelled",
    413: "too many bytes, or audio that is too long",
    415: "the content type is not supported",
    422: "the job failed; the message says why",
    424: "the audio at `url` could not be fetched",
    429: "over the quota of the API key; `Retry-After` says when to retry",
    500: "the engine failed, or an internal error; the server's log has it",
    503: "too many requests, shutting down, or no networks for speakers; `Retry-After` says when to retry",
    507: "the disk is full or cannot be written, or the device is out of memory",
}
EVENT_STREAM = {  # the schema describes one event
    "text/event-stream": {
        "schema": {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
    }
}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of these responses, of a 500, and beside a 401 of a 403, which has the same scope."""
    described = {*statuses, 500, *([403] if 401 in statuses else [])}
    return {status: {"model": ErrorBody, "description": DESCRIPTIONS[status]} for status in sorted(described)}


class ApiError(ChoralError):
    """An error response with the field it is about (`param`) and a machine-readable `code`."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.http_status, self.param, self.code = status, param, code
        self.retry_after_s = retry_after_s


def to_api_error(error: ChoralError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    status = STATUSES.get(type(error), error.http_status)
    param = "file" if isinstance(error, AudioError) else None
    estimate_s = error.retry_after_s if isinstance(error, QueueFull) else None
    retry_after_s = (estimate_s or DEFAULT_RETRY_S) if status == 503 else None
    code = _snake_case(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__))
    return ApiError(str(error), status=status, param=param, code=code, retry_after_s=retry_after_s)


def error_fields(error: ApiError) -> dict[str, dict[str, str | None]]:
    message = str(error).encode("utf-8", "replace").decode()  # a lone surrogate in it could not be sent
    detail = ErrorDetail(message=message, type=_type(error.http_status), param=error.param, code=error.code)
    return {"error": detail.model_dump()}


def error_response(error: ApiError) -> JSONResponse:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_fields(error), error.http_status, headers)


def internal_error_response(error: Exception, request_id: str) -> JSONResponse:
    """Internal error: logged in full; the client gets a bare 500."""
    log.error("internal error: please report it", exc_info=error, extra={"request": request_id})
    return error_response(ApiError("internal server error: see the server's log", status=500, code="internal_error"))


def choral_error_response(request: Request, error: ChoralError) -> JSONResponse:
    if error.http_status >= FIRST_SERVER_STATUS:
        log.warning("%s", error, extra={"request": getattr(request.state, "request_id", None)})
    return error_response(to_api_error(error))


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ChoralError)
    async def on_choral_error(request: Request, error: ChoralError) -> JSONResponse:
        return choral_error_response(request, error)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}; /openapi.json lists the routes"
        response = error_response(ApiError(message, status=error.status_code, code=_snake_case(str(error.detail))))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or None
        return error_response(ApiError(f"{field or 'the request'}: {first['msg']}", param=field, code="invalid_value"))


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 401:
        return "authentication_error"
    return "server_error" if status >= FIRST_SERVER_STATUS else "invalid_request_error"


def _snake_case(text: str) -> str:
    return re.sub(r"\W+", "_", text.lower()).strip("_")
