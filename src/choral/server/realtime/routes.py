"""`/v1/realtime`: checks who may connect, and rejects an invalid request with an HTTP error before the handshake.

The page that a browser opens a WebSocket for is checked before, by `cross_site`.
"""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from choral.errors import ChoralError
from choral.server.api_errors import ApiError, error_response, to_api_error
from choral.server.realtime.websocket_connection import WebSocketConnection
from choral.server.service import Service

PATH = "/v1/realtime"
PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"
QUERY_PARAMS = ("intent", "model")


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.websocket(PATH)
    async def realtime(websocket: WebSocket) -> None:
        try:
            model = _check_request(websocket, service)
            service.realtime.admission.require_capacity()
        except ChoralError as error:
            await websocket.send_denial_response(error_response(to_api_error(error)))
            return
        connection = WebSocketConnection(websocket, service, model, is_beta=_is_beta(websocket))
        with service.realtime.register(connection.drain), contextlib.suppress(WebSocketDisconnect):
            await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in websocket["subprotocols"] else None)
            await connection.run()

    return router


def _check_request(websocket: WebSocket, service: Service) -> str:
    """The requested model."""
    for name in websocket.query_params:
        if name not in QUERY_PARAMS:
            raise ApiError(f"{name[:100]} is not known here: use {' and '.join(QUERY_PARAMS)}", param=name[:100])
    if websocket.query_params.get("intent") != "transcription":
        raise ApiError(
            "only transcription is supported: connect to /v1/realtime?intent=transcription",
            param="intent",
            code="unsupported_value",
        )
    model = websocket.query_params.get("model") or service.model_id
    service.names.require(model)
    return model


def _is_beta(websocket: WebSocket) -> bool:
    has_header = "realtime=v1" in websocket.headers.get("openai-beta", "")
    return has_header or BETA_PROTOCOL in websocket["subprotocols"]
