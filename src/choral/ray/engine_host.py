"""A Ray actor that holds one engine: takes windows from the tasks of any node, and returns their results.

Whatever goes wrong is returned, not raised, so that errors keep their types. The actor is restarted when it dies, on
another node if need be; a window that was lost with it is submitted again by its sender.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from dataclasses import dataclass
from typing import Any

import choral
from choral.config import EngineSettings
from choral.engine.window import Aligned, AlignParams, Caller, Window
from choral.errors import ChoralError
from choral.longform.load_transcriber import default_name, load_transcriber
from choral.longform.transcriber import Transcriber
from choral.options import Priority
from choral.serving.engine_protocol import EngineDescription
from choral.serving.engine_server import describe


@dataclass(frozen=True)
class HostError:
    """An error on another node: its class and its text."""

    kind: str
    text: str


@dataclass(frozen=True)
class HostReport:
    """What the driver needs to know of an engine before it is used."""

    node: str
    version: str
    model: str
    engine: EngineDescription | None  # None: the error says why there is none
    error: HostError | None = None


class EngineHost:
    def __init__(self, model: str | None, settings: EngineSettings) -> None:
        self._transcriber: Transcriber | None = None
        self._callers: weakref.WeakValueDictionary[bytes, Caller] = weakref.WeakValueDictionary()
        self._error: HostError | None = None
        try:
            self._model = model if model is not None else default_name(settings)
            self._transcriber = load_transcriber(self._model, settings)
        except ChoralError as error:
            self._model = model or "the default model"
            self._error = HostError(type(error).__name__, str(error))

    async def report(self) -> HostReport:
        engine = None if self._transcriber is None else describe(self._transcriber)
        return HostReport(socket.gethostname(), choral.__version__, self._model, engine, self._error)

    async def run(self, window: Window[Any], caller_id: bytes, priority: Priority) -> Any:
        """The result of the window, or a `HostError`. Cancelling the call takes the window out of the engine."""
        if self._transcriber is None:
            assert self._error is not None
            return self._error
        engine = self._transcriber.engine
        try:
            future = engine.submit(window, self._caller(caller_id, priority))
            try:
                result = await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                engine.cancel(future)
                raise
        except ChoralError as error:
            return HostError(type(error).__name__, str(error))
        if isinstance(result, Aligned) and isinstance(window.params, AlignParams):
            # The rest is attention to padding, which nobody reads.
            return Aligned(result.scores[:, :, : window.params.n_frames], result.n_start_tokens, result.token_probs)
        return result

    def _caller(self, caller_id: bytes, priority: Priority) -> Caller:
        """The same object while the engine has windows of it: the engine shares its time between callers."""
        caller = self._callers.get(caller_id)
        if caller is None:
            caller = self._callers[caller_id] = Caller(priority)
        return caller
