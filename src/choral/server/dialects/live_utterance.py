"""An utterance that is decoded while it is spoken: a live session whose only client is another dialect.

The session has no turn detection: the dialect says when the utterance ends. If the session cannot take the audio, for
example because it is long and comes faster than it is spoken, the dialect transcribes it as a recording instead.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, get_args

from starlette.types import Message

from choral.common.aio import cancel_tasks
from choral.errors import ChoralError
from choral.options import TranscribeOptions
from choral.server.quota import ANONYMOUS
from choral.server.realtime.server_events import TRANSCRIPTION
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_config import AudioFormat, PcmRate, SessionConfig, TranscriptionConfig
from choral.server.realtime.websocket_connection import WebSocketConnection
from choral.server.service import Service

log = logging.getLogger("choral.server")
MAX_WAITING = 8  # messages
OnDelta = Callable[[str], Awaitable[None]]


class ClientLeft(Exception):
    """The connection of the dialect ended before its transcript was ready."""


class LiveUtterance:
    """The WebSocket of the session; all audio is 16-bit mono."""

    def __init__(
        self, service: Service, model: str | None, options: TranscribeOptions, rate: int, on_delta: OnDelta
    ) -> None:
        self._service, self._on_delta = service, on_delta
        self._model = service.names.resolve(model)
        self._config = SessionConfig(
            format=AudioFormat.model_validate({"type": "audio/pcm", "rate": rate}),
            transcription=TranscriptionConfig(
                model=self._model, language=options.language, keywords=tuple(options.hotwords or ())
            ),
            turn_detection=None,
        )
        self._messages: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._text: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    @staticmethod
    def can_take(rate: int, n_channels: int) -> bool:
        return rate in get_args(PcmRate) and n_channels == 1

    async def append(self, audio: bytes) -> None:
        await self._put({"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()})

    async def finish(self) -> str | None:
        """The whole text; None if the session could not take the audio."""
        await self._put({"type": "input_audio_buffer.commit"})
        ends: list[asyncio.Future[Any]] = [self._text, self._task]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return self._text.result() if self._text.done() else None

    async def cancel(self) -> None:
        """End the session."""
        await cancel_tasks([self._task])

    async def _put(self, event: dict[str, Any]) -> None:
        """Waits until there is room, unless the session has ended."""
        putting = asyncio.create_task(self._messages.put({"type": "websocket.receive", "text": json.dumps(event)}))
        await asyncio.wait([putting, self._task], return_when=asyncio.FIRST_COMPLETED)
        putting.cancel()

    async def _run(self) -> None:
        try:
            async with self._service.hold_model(self._model) as loaded:
                start = SessionStart(self._config, is_beta=False)
                host = self._service.session_host(loaded)
                await WebSocketConnection(self, host, start, ANONYMOUS.charge_used).run()
        except ClientLeft:
            pass  # the dialect notices it too
        except ChoralError as error:
            log.warning("an utterance is transcribed when it has ended: %s", error)

    # --- what the session uses ---

    async def receive(self) -> Message:
        return await self._messages.get()

    async def send_text(self, text: str, /) -> None:
        event = json.loads(text)
        if event["type"] == f"{TRANSCRIPTION}.delta":
            await self._on_delta(event["delta"])
        elif self._text.done():
            return
        elif event["type"] == f"{TRANSCRIPTION}.completed":
            self._text.set_result(event["transcript"])
        elif event["type"] in ("error", f"{TRANSCRIPTION}.failed"):
            self._text.set_result(None)

    async def close(self, code: int, reason: str, /) -> None:
        """The session ends by itself only after an error."""
