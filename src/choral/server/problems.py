"""What goes wrong, as an HTTP answer in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

The official clients make their typed exceptions of these. This is the one boundary of the server: every `ChoralError`
becomes its status here, and what nobody foresaw is logged and becomes a 500 that gives nothing away.
"""

from __future__ import annotations

import logging
import re

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from choral.errors import AudioError, ChoralError, FetchFailed, NotAudio, QueueFull

log = logging.getLogger("choral.server")
# Where OpenAI's own answer differs, and for an address that the caller gave: its failure is not this server's.
STATUSES: dict[type[ChoralError], int] = {NotAudio: 400, FetchFailed: 424}
FIRST_SERVER_STATUS = 500
TOO_MANY, UNAVAILABLE = 429, 503
DEFAULT_RETRY_S = 5


class Problem(ChoralError):
    """An answer of its own: which field is wrong, and a code that programs can tell it by."""

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


def problem_of(error: ChoralError) -> Problem:
    if isinstance(error, Problem):
        return error
    status = STATUSES.get(type(error), error.http_status)
    param = "file" if isinstance(error, AudioError) else None
    known_s = error.retry_after_s if isinstance(error, QueueFull) else None
    retry_after_s = (known_s or DEFAULT_RETRY_S) if status == UNAVAILABLE else None
    return Problem(str(error), status=status, param=param, code=_code(error), retry_after_s=retry_after_s)


def error_fields(problem: Problem) -> dict[str, dict[str, str | None]]:
    return {
        "error": {
            "message": str(problem),
            "type": _type(problem.http_status),
            "param": problem.param,
            "code": problem.code,
        }
    }


def answer(problem: Problem) -> JSONResponse:
    wait_s = problem.retry_after_s
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    if problem.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_fields(problem), problem.http_status, headers)


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ChoralError)
    async def of_choral(request: Request, error: ChoralError) -> JSONResponse:
        if error.http_status >= FIRST_SERVER_STATUS:
            log.warning("%s", error, extra={"request": getattr(request.state, "request_id", None)})
        return answer(problem_of(error))

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}; /openapi.json tells what there is"
        response = answer(Problem(message, status=error.status_code, code=_snake(str(error.detail))))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or None
        return answer(Problem(f"{field or 'the request'}: {first['msg']}", param=field, code="invalid_value"))


def mistake(error: Exception, request_id: str) -> JSONResponse:
    """Of ours: the log has it, the caller learns nothing but that."""
    log.error("a mistake in Choral: please report it", exc_info=error, extra={"request": request_id})
    return answer(Problem("the server made a mistake; its log says more", status=500, code="internal_error"))


def _type(status: int) -> str:
    if status == TOO_MANY:
        return "rate_limit_error"
    if status == 401:
        return "authentication_error"
    return "server_error" if status >= FIRST_SERVER_STATUS else "invalid_request_error"


def _code(error: ChoralError) -> str:
    return _snake(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__))


def _snake(text: str) -> str:
    return re.sub(r"\W+", "_", text.lower()).strip("_")
