"""Every request comes in and goes out through here: it gets an id, shows its key, is counted and logged.

Keys are asked for before anything of the body is read, under `/v1` and for `/metrics`; health and the page are open. A
WebSocket is a request that lasts; browsers cannot send headers with one, so its key may come as a subprotocol.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from choral.server.keys import ApiKey, KeyRing
from choral.server.limits import Meters
from choral.server.metrics import Metrics
from choral.server.problems import Problem, answer, mistake
from choral.server.traces import Tracing, current

log = logging.getLogger("choral.server")
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
KINDS = ("http", "websocket")
WEBSOCKET = "WEBSOCKET"  # in the place of a method
ANSWERS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
SWITCHED = 101
MISTAKE = 1011  # of WebSockets: what 500 is to HTTP
KEY_PROTOCOL = "openai-insecure-api-key."
LOCKED = ("/v1/", "/metrics")
QUIET = ("/health/", "/metrics", "/v1/engine")  # asked every few seconds: not worth a line each


class Doorman:
    def __init__(
        self, app: ASGIApp, *, keys: KeyRing, meters: Meters, metrics: Metrics, tracing: Tracing | None
    ) -> None:
        self._app, self._keys, self._meters, self._metrics = app, keys, meters, metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in KINDS:
            await self._app(scope, receive, send)
            return
        with self._traced(scope):
            await self._see_through(scope, receive, _Visit(scope, send))

    def _traced(self, scope: Scope) -> AbstractContextManager[None]:
        if self._tracing is None or scope["type"] != "http" or scope["path"].startswith(QUIET):
            return nullcontext()
        return self._tracing.request(_method(scope), Headers(scope=scope))

    async def _see_through(self, scope: Scope, receive: Receive, visit: _Visit) -> None:
        self._metrics.open_requests.inc()
        try:
            with ExitStack() as stack:
                try:
                    self._let_in(scope, stack)
                except Problem as problem:
                    await answer(problem)(scope, receive, visit.send)
                else:
                    await self._answer(scope, receive, visit)
        finally:
            self._metrics.open_requests.dec()
            self._note(scope, visit)
            _tell_trace(scope, visit)

    async def _answer(self, scope: Scope, receive: Receive, visit: _Visit) -> None:
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:  # a mistake of ours must not take the connection along
            response = mistake(error, visit.id)
            if visit.status == SWITCHED:
                await visit.send({"type": "websocket.close", "code": MISTAKE, "reason": "the server made a mistake"})
                return
            if visit.status:
                raise  # half an answer cannot be taken back: the connection ends
            await response(scope, receive, visit.send)

    def _let_in(self, scope: Scope, stack: ExitStack) -> None:
        if not (self._keys.is_needed and scope["path"].startswith(LOCKED)):
            return
        key = self._key(HTTPConnection(scope))
        meter = self._meters.of(key.name)
        if _method(scope) in ("POST", WEBSOCKET):
            stack.enter_context(meter.request(key))
        scope["state"]["key"] = key.name
        scope["state"]["charge"] = lambda duration_s: meter.charge(key, duration_s)

    def _key(self, request: HTTPConnection) -> ApiKey:
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            offered = [name for name in request.scope.get("subprotocols", ()) if name.startswith(KEY_PROTOCOL)]
            secret = offered[0].removeprefix(KEY_PROTOCOL) if offered else ""
        if not secret.strip():
            raise Problem("an API key is needed: send it as `Authorization: Bearer KEY`", status=401, code="no_api_key")
        key = self._keys.find(secret.strip())
        if key is None:
            raise Problem("this API key is not known: check it, or ask for one", status=401, code="invalid_api_key")
        return key

    def _note(self, scope: Scope, visit: _Visit) -> None:
        route = getattr(scope.get("route"), "path", "none")
        spent_s = time.monotonic() - visit.started_s
        status = visit.status or 499  # no answer was begun: nobody was there any more
        method = _method(scope)
        self._metrics.requests.labels(method, route, status).inc()
        if status != SWITCHED:  # a session lasts as long as somebody speaks
            self._metrics.request_s.labels(route).observe(spent_s)
        level = logging.DEBUG if scope["path"].startswith(QUIET) else logging.INFO
        text = f"{method} {quote(scope['path'])}: {status} in {spent_s:.3f} s"
        log.log(level, "%s", text, extra={"request": visit.id})


def _method(scope: Scope) -> str:
    """Anything may stand there, and each would be a name of its own."""
    if scope["type"] == "websocket":
        return WEBSOCKET
    return scope["method"] if scope["method"] in METHODS else "other"


class _Visit:
    def __init__(self, scope: Scope, send: Send) -> None:
        given = HTTPConnection(scope).headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else secrets.token_hex(16)
        self.started_s, self.status = time.monotonic(), 0
        self._send = send
        scope.setdefault("state", {})["request_id"] = self.id

    async def send(self, message: Message) -> None:
        if message["type"] in ANSWERS:
            self.status = message.get("status", SWITCHED)
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        elif message["type"] == "websocket.close" and not self.status:
            self.status = 403  # what a server makes of it before a connection is taken
        await self._send(message)


def _tell_trace(scope: Scope, visit: _Visit) -> None:
    if (trace := current.get()) is not None:
        route = getattr(scope.get("route"), "path", "none")
        trace.tell("http.route", route)
        trace.tell("choral.request_id", visit.id)
        trace.answered(f"{_method(scope)} {route}", visit.status or 499)
