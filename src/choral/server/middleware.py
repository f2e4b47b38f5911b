"""The outermost ASGI middleware: request id, authentication, quota, metrics, access log and the last error boundary.

Requests that a browser sends for a page of another site are refused first (`cross_site`).
API keys are checked before any of the body is read, under `/v1`, for `/metrics` and the routes of dialects; health
checks and the page are open. A WebSocket counts as one request for as long as it lasts; a client secret is as good as
the key it was made with.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from choral.server.api_errors import (
    CLIENT_CLOSED_REQUEST,
    DEFAULT_RETRY_S,
    ApiError,
    error_response,
    internal_error_response,
)
from choral.server.api_keys import ApiKey, ApiKeyStore
from choral.server.credentials import take_secret
from choral.server.cross_site import CrossSitePolicy
from choral.server.direct_route import DirectRoutes
from choral.server.metrics import ServerMetrics
from choral.server.quota import ANONYMOUS, KeyQuotas, Principal
from choral.server.realtime.client_secrets import ClientSecret, ClientSecrets
from choral.server.step_limiter import StepLimiter
from choral.server.tracing import Tracing, set_attribute, set_result

log = logging.getLogger("choral.server")
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WEBSOCKET = "WEBSOCKET"  # in place of the method
RESPONSE_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
SWITCHING_PROTOCOLS = 101
WEBSOCKET_INTERNAL_ERROR = 1011
AUTHENTICATED_PATHS = ("/v1/", "/api/", "/metrics", "/asr", "/detect-language", "/inference", "/load")
# Requested every few seconds: logged at DEBUG, not traced, and not delayed by a burst of other requests.
POLLED_PATHS = ("/health", "/metrics", "/v1/engine")
MAX_STARTS_PER_STEP = 4  # of the event loop; reading and submitting a small form takes up to a millisecond


class RequestMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        *,
        cross_site: CrossSitePolicy,
        keys: ApiKeyStore,
        client_secrets: ClientSecrets,
        quotas: KeyQuotas,
        metrics: ServerMetrics,
        tracing: Tracing | None,
        direct_routes: DirectRoutes,
    ) -> None:
        self._direct_routes = direct_routes
        self._app, self._keys, self._quotas, self._metrics = app, keys, quotas, metrics
        self._cross_site, self._client_secrets, self._tracing = cross_site, client_secrets, tracing
        self._starts = StepLimiter(MAX_STARTS_PER_STEP)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with self._trace(scope):
            await self._handle(scope, receive, _Exchange(scope, send))

    def _trace(self, scope: Scope) -> AbstractContextManager[None]:
        if self._tracing is None or scope["type"] != "http" or scope["path"].startswith(POLLED_PATHS):
            return nullcontext()
        return self._tracing.request(_method(scope), Headers(scope=scope))

    async def _handle(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        self._metrics.open_requests.inc()
        try:
            with ExitStack() as stack:
                try:
                    scope["state"]["principal"] = self._authorize(scope, stack)
                except ApiError as error:
                    await error_response(error)(scope, receive, exchange.send)
                else:
                    await self._call_app(scope, receive, exchange)
        finally:
            self._metrics.open_requests.dec()
            self._record(scope, exchange)

    async def _call_app(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        try:
            if not scope["path"].startswith(POLLED_PATHS):
                await self._starts.wait()
            route = self._direct_routes.find(scope)
            await (self._app if route is None else route.handle)(scope, receive, exchange.send)
        except Exception as error:  # a bug in a route must not take the server down
            response = internal_error_response(error, exchange.request_id)
            if exchange.status == SWITCHING_PROTOCOLS:
                close = {"type": "websocket.close", "code": WEBSOCKET_INTERNAL_ERROR, "reason": "internal server error"}
                await exchange.send(close)
                return
            if exchange.status:
                raise  # the response has begun: all that is left is to drop the connection
            await response(scope, receive, exchange.send)
        except asyncio.CancelledError:  # uvicorn cancels requests when the time for the shutdown is over
            if scope["type"] != "http":
                raise
            if not exchange.status:
                await error_response(_out_of_time())(scope, receive, exchange.send)

    def _authorize(self, scope: Scope, stack: ExitStack) -> Principal:
        """The caller; a POST or WebSocket counts against the key's quota until the stack is closed."""
        secret = take_secret(scope)
        self._cross_site.check(HTTPConnection(scope))
        client_secret = self._client_secrets.find(secret) if scope["type"] == "websocket" else None
        scope["state"]["client_secret"] = client_secret
        if not (self._keys.is_required and scope["path"].startswith(AUTHENTICATED_PATHS)):
            return ANONYMOUS
        key = self._authenticate(secret, client_secret)
        quota = self._quotas.of(key.name)
        if _method(scope) in ("POST", WEBSOCKET):
            stack.enter_context(quota.request(key))
        return Principal(key, quota)

    def _authenticate(self, secret: str, client_secret: ClientSecret | None) -> ApiKey:
        if not secret:
            raise ApiError(
                "an API key is required: send it as `Authorization: Bearer KEY`", status=401, code="no_api_key"
            )
        key = self._keys.find(secret)
        if client_secret is not None and client_secret.key_sha256 is not None:
            key = self._keys.find_hash(client_secret.key_sha256)  # which may be gone
        if key is None:
            raise ApiError(
                "this API key is not valid: check it, or request a new one", status=401, code="invalid_api_key"
            )
        return key

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        """Record the metrics, access log and trace of a finished request."""
        route = getattr(scope.get("route"), "path", "none")
        elapsed_s = time.monotonic() - exchange.started_s
        status = exchange.status or CLIENT_CLOSED_REQUEST
        method = _method(scope)
        self._metrics.requests.labels(method, route, status).inc()
        if status != SWITCHING_PROTOCOLS:  # the duration of a session is not a latency
            self._metrics.request_s.labels(route).observe(elapsed_s)
        level = logging.DEBUG if scope["path"].startswith(POLLED_PATHS) else logging.INFO
        text = f"{method} {quote(scope['path'])}: {status} in {elapsed_s:.3f} s"
        log.log(level, "%s", text, extra={"request": exchange.request_id})
        set_attribute("http.route", route)
        set_attribute("choral.request_id", exchange.request_id)
        set_result(f"{method} {route}", status)


def _method(scope: Scope) -> str:
    """Clients may send any method: unknown ones share a label, so that metrics stay bounded."""
    if scope["type"] == "websocket":
        return WEBSOCKET
    return scope["method"] if scope["method"] in METHODS else "other"


def _out_of_time() -> ApiError:
    text = "the server is shutting down, and this request was not finished in time: send it again"
    return ApiError(text, status=503, code="shutting_down", retry_after_s=DEFAULT_RETRY_S)


class _Exchange:
    """One request: its id, start and response status; `send` adds the id to the response headers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        sent_id = HTTPConnection(scope).headers.get("x-request-id", "")
        self.request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(16)
        self.started_s, self.status = time.monotonic(), 0
        self._send = send
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        if message["type"] in RESPONSE_STARTS:
            self.status = message.get("status", SWITCHING_PROTOCOLS)
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        elif message["type"] == "websocket.close" and not self.status:
            self.status = 403  # a WebSocket closed before it is accepted: the server answers 403
        await self._send(message)
