"""`/v1/realtime`: checks who may connect, and rejects an invalid request with an HTTP error before the handshake.

The page that a browser opens a WebSocket for is checked before, by `cross_site`.
"""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from choral.errors import ChoralError
from choral.server.api_errors import ApiError, error_response, to_api_error
from choral.server.realtime.client_secrets import ClientSecret
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_config import SessionConfig
from choral.server.realtime.websocket_connection import WebSocketConnection
from choral.server.service import Service

PATH = "/v1/realtime"
PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"
INTENT = "transcription"
QUERY_PARAMS = ("intent", "model")


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.websocket(PATH)
    async def realtime(websocket: WebSocket) -> None:
        async with AsyncExitStack() as stack:
            try:
                start = _check_request(websocket, service)
                service.realtime.admission.require_capacity()
                loaded = await stack.enter_async_context(service.hold_model(start.config.transcription.model))
            except ChoralError as error:
                await websocket.send_denial_response(error_response(to_api_error(error)))
                return
            connection = WebSocketConnection(websocket, service, loaded, start)
            with service.realtime.register(connection.drain), contextlib.suppress(WebSocketDisconnect):
                await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in websocket["subprotocols"] else None)
                await connection.run()

    return router


def _check_request(websocket: WebSocket, service: Service) -> SessionStart:
    """What the query asks for; with a client secret, what was configured for it."""
    unknown = tuple(name for name in websocket.query_params if name not in QUERY_PARAMS)
    if websocket.query_params.get("intent", INTENT) != INTENT:
        raise ApiError(
            "only transcription is supported: connect to /v1/realtime?intent=transcription",
            param="intent",
            code="unsupported_value",
        )
    model = websocket.query_params.get("model") or service.model_id
    service.names.resolve(model)
    client_secret: ClientSecret | None = websocket.state.client_secret
    if client_secret is not None:
        return SessionStart(client_secret.config, client_secret.is_beta, unknown)
    return SessionStart(SessionConfig.of_model(model), _is_beta(websocket), unknown)


def _is_beta(websocket: WebSocket) -> bool:
    has_header = "realtime=v1" in websocket.headers.get("openai-beta", "")
    return has_header or BETA_PROTOCOL in websocket["subprotocols"]
