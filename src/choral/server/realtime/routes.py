"""`/v1/realtime`: who may connect, and to what; whatever is wrong is an HTTP answer before the connection is taken.

Browsers let any page open a WebSocket anywhere, so the origin is checked here: this server's own, or one of
`--cors-origins`.
"""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from choral.errors import ChoralError
from choral.server.api_errors import ApiError, error_response, to_api_error
from choral.server.openai import model_names, require_model
from choral.server.realtime.websocket_connection import RealtimeConnection
from choral.server.service import Service

PATH = "/v1/realtime"
PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"
QUERY = ("intent", "model")


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.websocket(PATH)
    async def realtime(websocket: WebSocket) -> None:
        try:
            model = _require_fitting(websocket, service)
            service.realtime.admission.require_capacity()
        except ChoralError as error:
            await websocket.send_denial_response(error_response(to_api_error(error)))
            return
        connection = RealtimeConnection(websocket, service, model, is_beta=_is_beta(websocket))
        with service.realtime.register(connection.drain), contextlib.suppress(WebSocketDisconnect):
            await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in websocket["subprotocols"] else None)
            await connection.run()

    return router


def _require_fitting(websocket: WebSocket, service: Service) -> str:
    """The model that is asked for."""
    _require_origin(websocket, service.settings.cors_origins)
    for name in websocket.query_params:
        if name not in QUERY:
            raise ApiError(f"{name[:100]} is not known here: {' and '.join(QUERY)} are", param=name[:100])
    if websocket.query_params.get("intent") != "transcription":
        raise ApiError(
            "only transcription is served here: connect to /v1/realtime?intent=transcription",
            param="intent",
            code="unsupported_value",
        )
    model = websocket.query_params.get("model") or model_names(service)[0]
    require_model(service, model)
    return model


def _require_origin(websocket: WebSocket, allowed: tuple[str, ...]) -> None:
    origin = websocket.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != websocket.headers.get("host"):
        raise ApiError(
            f"pages of {origin[:100]} may not connect: the server must be started with --cors-origins {origin[:100]}",
            status=403,
            code="origin_not_allowed",
        )


def _is_beta(websocket: WebSocket) -> bool:
    is_asked = "realtime=v1" in websocket.headers.get("openai-beta", "")
    return is_asked or BETA_PROTOCOL in websocket["subprotocols"]
