"""Deepgram's live audio: `/v1/listen` as a WebSocket, translated to and from the events of a live session.

Binary messages are headerless audio. A turn, which ends after `endpointing` ms of silence, is one final result;
interim results have the text of the turn so far. The session, its limits and its drain are those of `/v1/realtime`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from contextlib import AsyncExitStack
from typing import Any, Literal, get_args

from fastapi import APIRouter, WebSocket
from pydantic import Field
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from choral.errors import ChoralError
from choral.server.api_errors import ApiError, error_response, to_api_error
from choral.server.dialects import deepgram
from choral.server.dialects.deepgram import LISTEN, ListenFields, query_pairs, served_model
from choral.server.dialects.deepgram_results import LiveResults
from choral.server.dialects.dialect_request import read_fields
from choral.server.quota import principal_of
from choral.server.realtime.audio_formats import G711_RATE
from choral.server.realtime.client_events import parse_object
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_config import (
    MAX_SILENCE_MS,
    AudioFormat,
    PcmRate,
    ServedModel,
    SessionConfig,
    TranscriptionConfig,
    TurnDetection,
)
from choral.server.realtime.websocket_connection import WebSocketConnection
from choral.server.service import Service

DEFAULT_ENDPOINTING_MS = 500
MIN_ENDPOINTING_MS = 200  # a shorter pause is often inside a sentence, which Whisper needs as a whole
FORMATS: dict[str, Literal["audio/pcm", "audio/pcmu", "audio/pcma"]] = {
    "linear16": "audio/pcm",
    "mulaw": "audio/pcmu",
    "alaw": "audio/pcma",
}
NO_CHANGE = json.dumps({"type": "session.update", "session": {"type": "transcription"}})


class LiveFields(ListenFields):
    interim_results: bool = False
    endpointing: str = Field(str(DEFAULT_ENDPOINTING_MS), description="milliseconds of silence, or false")
    utterance_end_ms: int | None = Field(None, ge=0, le=MAX_SILENCE_MS)
    vad_events: bool = False

    @property
    def silence_ms(self) -> int:
        """That ends a turn; without endpointing, only the silence of `utterance_end_ms` or the client does."""
        if self.endpointing in ("false", "False"):
            return self.utterance_end_ms or MAX_SILENCE_MS
        if self.endpointing in ("true", "True"):
            return DEFAULT_ENDPOINTING_MS
        if not (self.endpointing.isascii() and self.endpointing.isdecimal() and len(self.endpointing) < 6):
            text = "`endpointing` must be milliseconds, or false"
            raise ApiError(text, param="endpointing", code="invalid_value")
        return min(MAX_SILENCE_MS, max(MIN_ENDPOINTING_MS, int(self.endpointing)))

    @property
    def bytes_per_s(self) -> int:
        assert self.raw_format is not None
        return self.raw_format.bytes_per_s

    def session_config(self, served: ServedModel) -> SessionConfig:
        """Raises the `ApiError` of what a live session cannot do."""
        if self.encoding is None:
            text = "live audio has no header here: send raw samples, and `encoding` and `sample_rate` in the query"
            raise ApiError(text, param="encoding", code="unsupported_value")
        if self.channels != 1 or self.multichannel:
            text = "live audio has one channel here: open a connection for each"
            raise ApiError(text, param="channels", code="unsupported_value")
        is_pcm = FORMATS[self.encoding] == "audio/pcm"
        rates = get_args(PcmRate) if is_pcm else (G711_RATE,)
        if self.sample_rate not in rates:
            text = f"the sample rate of {self.encoding} must be one of {', '.join(map(str, rates))}"
            raise ApiError(text, param="sample_rate", code="unsupported_value")
        audio_format = {"type": FORMATS[self.encoding], **({"rate": self.sample_rate} if is_pcm else {})}
        transcription = {
            "model": served.names.default,
            "language": None if self.detect_language else self.language,
            "keywords": self.hotwords,
            "diarize": self.diarize,
        }
        return SessionConfig(
            format=AudioFormat.model_validate(audio_format),
            transcription=TranscriptionConfig.model_validate(transcription, context=served),
            turn_detection=TurnDetection(type="server_vad", silence_duration_ms=self.silence_ms),
        )


class DeepgramSocket:
    """A WebSocket of Deepgram's protocol that looks like one of OpenAI's to `WebSocketConnection`."""

    def __init__(self, websocket: WebSocket, fields: LiveFields, model: str) -> None:
        self._websocket, self._bytes_per_s = websocket, fields.bytes_per_s
        self._results = LiveResults(
            model,
            has_interim=fields.interim_results,
            has_vad_events=fields.vad_events,
            utterance_end_s=None if fields.utterance_end_ms is None else fields.utterance_end_ms / 1000,
            silence_s=fields.silence_ms / 1000,
        )
        self.connection: WebSocketConnection | None = None

    async def receive(self) -> Message:
        """The next message as one of OpenAI's; those without a counterpart change nothing but the idle time."""
        message = await self._websocket.receive()
        if message["type"] != "websocket.receive":
            return message
        return {"type": "websocket.receive", "text": await self._translate(message)}

    async def _translate(self, message: Message) -> str:
        audio, text = message.get("bytes"), message.get("text")
        if audio:
            for event in self._results.hear(len(audio) / self._bytes_per_s, audio):
                await self._send(event)
            return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()})
        kind = "CloseStream" if text is None else await self._kind_of(text)
        if kind == "Finalize":
            self._results.is_finalizing = True
            return json.dumps({"type": "input_audio_buffer.commit"})
        if kind == "CloseStream" and self.connection is not None:
            self.connection.finish()
        return NO_CHANGE

    async def _kind_of(self, text: str) -> str | None:
        try:
            kind = parse_object(text).get("type")
        except ApiError:
            kind = None
        if kind not in ("KeepAlive", "Finalize", "CloseStream"):
            known = "send audio as binary messages, or KeepAlive, Finalize or CloseStream"
            await self._send({"type": "Error", "variant": "SchemaError", "description": f"unknown message: {known}"})
        return kind if isinstance(kind, str) else None

    async def send_text(self, text: str) -> None:
        for event in self._results.translate(json.loads(text)):
            await self._send(event)

    async def close(self, code: int, reason: str) -> None:
        await self._send(self._results.metadata())
        await self._websocket.close(code, reason)

    async def _send(self, event: dict[str, Any]) -> None:
        await self._websocket.send_text(json.dumps(event))


def make_router(service: Service) -> APIRouter:
    router = deepgram.make_router(service)

    @router.websocket(LISTEN)
    async def listen(websocket: WebSocket) -> None:
        async with AsyncExitStack() as stack:
            try:
                fields, _ = read_fields(LiveFields, query_pairs(websocket))
                model = served_model(service, fields.model)
                served = ServedModel(service.names.of_model(model), service.models.info(model).tokenizer)
                service.require_supported(fields.options(), task_param="model", model=model)
                config = fields.session_config(served)
                service.realtime.admission.require_capacity()
                loaded = await stack.enter_async_context(service.hold_model(model))
            except ChoralError as error:
                await websocket.send_denial_response(error_response(to_api_error(error)))
                return
            socket = DeepgramSocket(websocket, fields, model)
            start, charge = SessionStart(config, is_beta=False), principal_of(websocket).charge_used
            connection = WebSocketConnection(socket, service.session_host(loaded), start, charge)
            socket.connection = connection
            with contextlib.suppress(WebSocketDisconnect):
                with service.realtime.register(connection.drain):
                    await websocket.accept(subprotocol=_subprotocol(websocket))
                    await connection.run()
                await connection.close()

    return router


def _subprotocol(websocket: WebSocket) -> str | None:
    """The scheme of a key that a browser sent as a subprotocol."""
    offered = websocket["subprotocols"]
    return offered[0] if offered and offered[0].lower() in ("token", "bearer") else None
