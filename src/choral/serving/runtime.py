"""The runtime: one way to run requests for every front door, in processes or on threads of the calling process.

`start` runs one request and reports its events; `transcribe_many` runs any number of inputs and yields results as they
finish. The engine stays in the calling process and serves the request processes from a thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from choral.audio.recording import decode_into
from choral.engine.engine import CLOSED
from choral.errors import ChoralError, EngineClosed
from choral.longform.transcriber import Transcriber
from choral.options import Priority, TranscribeOptions
from choral.serving.engine_server import EngineServer
from choral.serving.local_requests import LocalRequests
from choral.serving.pool_settings import PoolSettings
from choral.serving.request_events import (
    OnEvent,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TranscribeRequest,
)
from choral.serving.request_inputs import RequestAudio
from choral.serving.request_pool import NotShareable, RequestBacklog, RequestPool
from choral.serving.request_run import DecodeFunction
from choral.serving.runtime_plan import RuntimePlan, plan_service
from choral.serving.settings import ServingSettings
from choral.serving.supervised_engine import SupervisedEngine
from choral.transcript import Transcript

NO_BACKLOG = RequestBacklog(waiting=0, fetching=0, decoding=0, transcribing=0)


class RequestHandle(Protocol):
    def cancel(self) -> None: ...


class InputResult(NamedTuple):
    """One input of many, with its transcript or the error that it failed with."""

    audio: RequestAudio
    outcome: Transcript | ChoralError

    @property
    def transcript(self) -> Transcript:
        """Raises the error, if there is one."""
        if isinstance(self.outcome, ChoralError):
            raise self.outcome
        return self.outcome


class Runtime:
    def __init__(
        self,
        transcriber: Transcriber,
        plan: RuntimePlan,
        n_requests: int,
        settings: PoolSettings | None = None,
        *,
        decode: DecodeFunction = decode_into,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`n_requests` at once keep the engine busy. Processes start on demand; `decode` is what they run.

        With a `loop`, see `RequestPool`.
        """
        self.plan, self.n_requests = plan, n_requests
        n_processes = max(1, plan.n_processes)
        self.settings = settings or PoolSettings(n_processes=n_processes, n_requests=-(-n_requests // n_processes))
        self._local = LocalRequests(transcriber, self.settings.limits)
        self._pool: RequestPool | None = None
        self._server: EngineServer | None = None
        self._engine = transcriber.engine
        self._on_restart: list[Callable[[], None]] = []
        self.add_client: Callable[[socket.socket], object] | None = None  # connects a process to the engine
        if plan.n_processes and isinstance(self._engine, SupervisedEngine):
            self.add_client = self._engine.add_client
            self._engine.on_restart = self._report_restart
        elif plan.n_processes:
            self._server = EngineServer(transcriber)
            self.add_client = self._server.add_client
        if self.add_client is not None:
            self._pool = RequestPool(self.add_client, self.settings, decode=decode, loop=loop)
            self.on_engine_restart(self._pool.renew)

    @classmethod
    def for_service(
        cls,
        transcriber: Transcriber,
        settings: ServingSettings,
        n_requests: int,
        *,
        decode: DecodeFunction = decode_into,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Runtime:
        """For a server or a worker, with its limits on what may be read."""
        chosen = PoolSettings.of(settings, n_requests, keeps_all="cuda" in transcriber.engine.device)
        plan = plan_service(chosen.n_processes, has_engine_process=isinstance(transcriber.engine, SupervisedEngine))
        return cls(transcriber, plan, n_requests, chosen, decode=decode, loop=loop)

    def start(self, request: TranscribeRequest, on_event: OnEvent) -> RequestHandle:
        """Never raises for an input: its errors are events, on another thread or before this returns."""
        if not self._engine.is_working:
            on_event(RequestFailed(EngineClosed(self._engine.failure or CLOSED)))
            return EndedRequest()
        if self._pool is not None:
            try:
                return self._pool.start(request, on_event)
            except NotShareable:
                pass
            except ChoralError as error:
                on_event(RequestFailed(error))
                return EndedRequest()
        return self._local.start(request, on_event)

    def on_engine_restart(self, callback: Callable[[], None]) -> None:
        """Clients of an engine whose process was started again have ended; called on another thread."""
        self._on_restart.append(callback)

    def _report_restart(self) -> None:
        for callback in self._on_restart:
            callback()

    @property
    def backlog(self) -> RequestBacklog:
        """Of the requests in processes."""
        return NO_BACKLOG if self._pool is None else self._pool.backlog

    def transcribe_many(
        self, inputs: Iterable[RequestAudio], options: TranscribeOptions, priority: Priority
    ) -> Iterator[InputResult]:
        """Takes an input when another has finished and its result was taken: at most `n_requests` are in memory."""
        events: SimpleQueue[tuple[int, RequestEvent]] = SimpleQueue()
        batch = ManyInputs(self, inputs, options, priority, lambda number, event: events.put((number, event)))
        try:
            while batch.start_next():
                yield batch.finish(*events.get())
        finally:
            batch.cancel()

    async def atranscribe_many(
        self, inputs: Iterable[RequestAudio], options: TranscribeOptions, priority: Priority
    ) -> AsyncIterator[InputResult]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[int, RequestEvent]] = asyncio.Queue()

        def put(number: int, event: RequestEvent) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, (number, event))

        batch = ManyInputs(self, inputs, options, priority, put)
        try:
            while batch.start_next():
                yield batch.finish(*await events.get())
        finally:
            batch.cancel()

    def close(self) -> None:
        """Cancel all requests, and end the processes; the engine goes on."""
        self._local.close()
        if self._pool is not None:
            self._pool.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EndedRequest:
    """The handle of a request that failed before it started."""

    def cancel(self) -> None:
        """Does nothing."""


class ManyInputs:
    """The inputs of one `transcribe_many`: which of them run."""

    def __init__(
        self,
        runtime: Runtime,
        inputs: Iterable[RequestAudio],
        options: TranscribeOptions,
        priority: Priority,
        on_end: Callable[[int, RequestEvent], None],
    ) -> None:
        self._runtime, self._options, self._priority, self._on_end = runtime, options, priority, on_end
        self._inputs = enumerate(inputs)
        self._running: dict[int, tuple[RequestAudio, RequestHandle]] = {}

    def start_next(self) -> bool:
        """Start inputs up to the limit; False when all have finished."""
        while len(self._running) < self._runtime.n_requests:
            following = next(self._inputs, None)
            if following is None:
                break
            number, audio = following
            self._running[number] = (audio, self._start(number, audio))
        return bool(self._running)

    def finish(self, number: int, event: RequestEvent) -> InputResult:
        audio, _ = self._running.pop(number)
        if isinstance(event, RequestFinished):
            return InputResult(audio, event.transcript)
        assert isinstance(event, RequestFailed)
        if isinstance(event.error, CancelledError):  # the runtime was closed: nobody else cancels these
            raise EngineClosed(CLOSED) from event.error
        if not isinstance(event.error, ChoralError):
            raise event.error
        return InputResult(audio, event.error)

    def cancel(self) -> None:
        for _, handle in self._running.values():
            handle.cancel()

    def _start(self, number: int, audio: RequestAudio) -> RequestHandle:
        request = TranscribeRequest(
            audio=audio,
            options=self._options,
            priority=self._priority,
            wants_segments=False,
            wants_progress=False,
        )

        def on_event(event: RequestEvent) -> None:
            if isinstance(event, RequestFinished | RequestFailed):
                self._on_end(number, event)

        return self._runtime.start(request, on_event)
