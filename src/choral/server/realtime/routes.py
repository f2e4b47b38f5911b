"""`/v1/realtime`: checks who may connect, and rejects an invalid request with an HTTP error before the handshake.

The page that a browser opens a WebSocket for is checked before, by `cross_site`.
"""

from __future__ import annotations

import contextlib
import json

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from choral.errors import ChoralError
from choral.server.api_errors import ApiError, error_response, to_api_error
from choral.server.quota import principal_of
from choral.server.realtime import server_events
from choral.server.realtime.client_secrets import ClientSecret
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_config import SessionConfig
from choral.server.realtime.session_host import SessionHost
from choral.server.realtime.session_pool import SessionPool
from choral.server.realtime.websocket_connection import INTERNAL_ERROR, WebSocketConnection
from choral.server.realtime.websocket_protocol import HANDOVER, WebSocketProtocol
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
        try:
            start = _check_request(websocket, service)
            service.realtime.admission.require_capacity()
            async with service.hold_model(start.config.transcription.model) as loaded:
                with contextlib.suppress(WebSocketDisconnect):
                    if (pool := service.realtime.pool_of(loaded.id)) is None:
                        await _serve_here(websocket, service, service.session_host(loaded), start)
                    else:
                        await _serve_in_process(websocket, service, pool, start)
        except ChoralError as error:
            await _report(websocket, to_api_error(error))

    return router


async def _serve_here(websocket: WebSocket, service: Service, host: SessionHost, start: SessionStart) -> None:
    connection = WebSocketConnection(websocket, host, start, principal_of(websocket).charge_used)
    with service.realtime.register(connection.drain):
        await websocket.accept(subprotocol=_subprotocol(websocket))
        await connection.run()
    await connection.close()


async def _serve_in_process(websocket: WebSocket, service: Service, pool: SessionPool, start: SessionStart) -> None:
    """Hand the connection over to a session process, and keep the place of the session until it ends."""
    handover: WebSocketProtocol = websocket["extensions"][HANDOVER]
    session = pool.reserve(start, principal_of(websocket).charge_used)
    try:
        with service.realtime.register(session.drain):
            await session.wait_ready()
            handover.prepare_handover()
            await websocket.accept(subprotocol=_subprotocol(websocket))
            if (fd := await handover.handed_over_fd()) is not None:
                await session.run(fd)
    finally:
        session.release()


async def _report(websocket: WebSocket, error: ApiError) -> None:
    """Before the handshake, as an HTTP error; else as an event before the end, which another process did not send."""
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(error_response(error))
        return
    with contextlib.suppress(WebSocketDisconnect):
        await websocket.send_text(json.dumps(server_events.error(error)))
        await websocket.close(INTERNAL_ERROR, "the session is lost")


def _subprotocol(websocket: WebSocket) -> str | None:
    return PROTOCOL if PROTOCOL in websocket["subprotocols"] else None


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
