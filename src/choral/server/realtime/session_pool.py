"""A pool of session processes: the server hands each live session's connection to the process with the fewest.

Processes start with the server, because a session lasts: those that come while others start would stay together. One
that ends closes its own sessions, and is started again. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from choral.common.aio import cancel_tasks
from choral.common.backoff import backoff_s
from choral.errors import EngineError
from choral.server.api_errors import DEFAULT_RETRY_S, ApiError
from choral.server.realtime.outbox import call_in_loop
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_channel import AddClient, SessionChannel
from choral.server.realtime.session_host import SessionLimits, SessionMetrics
from choral.server.realtime.session_messages import ProcessStart, encode_refusal, encode_session_start
from choral.serving.child_process import death_reason
from choral.serving.request_protocol import ProcessMessage
from choral.serving.runtime_plan import n_session_processes

if TYPE_CHECKING:
    from choral.server.service import Service

log = logging.getLogger("choral.server")
CHECK_INTERVAL_S, MAX_SILENT_S, MAX_START_S = 5.0, 30.0, 120.0  # a process that does not answer is killed
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 60.0  # before a process is started again; doubles with each that did not get ready


class SessionLost(ApiError):
    """The process of a session has ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}, and the session with it: connect again",
            status=503,
            code="session_process_ended",
            retry_after_s=DEFAULT_RETRY_S,
        )


class PooledSession:
    """One live session, from its admission to its end."""

    def __init__(
        self, number: int, channel: SessionChannel, start: SessionStart, charge: Callable[[float], None]
    ) -> None:
        self._number, self._channel, self._start, self._charge = number, channel, start, charge
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(lambda future: future.cancelled() or future.exception())  # may be read by nobody
        self._is_open = self._is_draining = False

    async def wait_ready(self) -> None:
        """Until its process has started; raises `SessionLost`."""
        await asyncio.shield(self._channel.ready)

    async def run(self, fd: int) -> None:
        """Hand the connection over, and wait until the session has ended; raises `SessionLost`."""
        self._channel.send(["open", self._number, encode_session_start(self._start)], fd)
        self._is_open = True
        if self._is_draining:
            self.drain()
        await asyncio.shield(self.ended)

    def drain(self) -> None:
        """Ask the session to finish its turns and then close."""
        self._is_draining = True
        if self._is_open:
            self._channel.send(["drain", self._number])

    def release(self) -> None:
        """Give its place back; a session that has not ended is stopped."""
        if self._channel.sessions.pop(self._number, None) is not None and self._is_open:
            self._channel.send(["stop", self._number])

    def charge(self, duration_s: float) -> None:
        try:
            self._charge(duration_s)
        except ApiError as error:
            self._channel.send(["refuse", self._number, encode_refusal(error)])

    def end(self, error: SessionLost | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class SessionPool:
    def __init__(self, add_client: AddClient, start: ProcessStart, metrics: SessionMetrics) -> None:
        """Starts the processes; `add_client` connects one to the engine."""
        self._add_client, self._start, self._metrics = add_client, start, metrics
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._n_failures = 0  # processes in a row that ended before they were ready
        self.has_started = False  # all processes have been ready
        self._is_closed = False
        self._exits: set[asyncio.Task[None]] = set()
        self._channels = [self._start_process() for _ in range(start.n_processes)]

    @property
    def model_id(self) -> str:
        """Of the only model that these processes are connected to."""
        return self._start.names.default

    @property
    def pids(self) -> list[int]:
        return [channel.pid for channel in self._channels]

    def reserve(self, start: SessionStart, charge: Callable[[float], None]) -> PooledSession:
        """A place for a session, in the process with the fewest; `charge` may raise the error that ends it."""
        if not self._channels:
            raise SessionLost("the process of live sessions has ended")
        channel = min(self._channels, key=lambda each: (len(each.sessions), not each.is_ready))
        session = PooledSession(number := next(self._numbers), channel, start, charge)
        channel.sessions[number] = session
        return session

    def renew_engine(self) -> None:
        """From any thread: the engine's process was started again, so all sessions need new connections to it."""
        call_in_loop(self._loop, self._connect_all)

    def _connect_all(self) -> None:
        for channel in self._channels:
            channel.connect_engine(self._add_client)

    async def watch(self) -> None:
        """Kill processes that do not answer; their sessions are lost."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for channel in self._channels:
                silent_s = self._loop.time() - channel.last_message_s
                if silent_s > (MAX_SILENT_S if channel.is_ready else MAX_START_S):
                    log.error("a session process has not answered for %.0f s: it is killed", silent_s)
                    channel.kill()
                elif channel.is_ready:
                    channel.send(["alive"])

    async def close(self) -> None:
        """End the processes, and with them all sessions."""
        self._is_closed = True
        await cancel_tasks(self._exits)
        for channel in self._channels:
            channel.close()
            self._lose_sessions(channel, "the server has stopped")
        self._channels.clear()

    # Processes

    def _start_process(self) -> SessionChannel:
        return SessionChannel(self._add_client, self._start, self._apply, self._handle_exit)

    def _handle_exit(self, channel: SessionChannel) -> None:
        self._channels.remove(channel)
        task = asyncio.create_task(self._replace(channel))
        self._exits.add(task)
        task.add_done_callback(self._exits.discard)

    async def _replace(self, channel: SessionChannel) -> None:
        was_ready = channel.is_ready
        reason = f"a process of live sessions has ended ({death_reason(await channel.wait())})"
        log.error("%s with %d sessions: it is started again", reason, len(channel.sessions))
        self._lose_sessions(channel, reason)
        self._n_failures = 0 if was_ready else self._n_failures + 1
        while not self._is_closed:
            await asyncio.sleep(backoff_s(self._n_failures + 1, FIRST_PAUSE_S, MAX_PAUSE_S))
            try:
                self._channels.append(self._start_process())
                return
            except (EngineError, OSError) as error:
                self._n_failures += 1
                log.error("a session process could not be started: %s", error)

    def _lose_sessions(self, channel: SessionChannel, reason: str) -> None:
        error = SessionLost(reason)
        if not channel.ready.done():
            channel.ready.set_exception(error)
            channel.ready.exception()  # nobody may wait for it
        for session in list(channel.sessions.values()):
            session.end(error)
        channel.sessions.clear()

    # Messages of a process

    def _apply(self, channel: SessionChannel, message: ProcessMessage) -> None:
        match message:
            case ["ready"]:
                self._n_failures = 0
                channel.ready.set_result(None)
                self.has_started = self.has_started or all(each.is_ready for each in self._channels)
            case ["charge", number, float(duration_s)] if math.isfinite(duration_s) and duration_s >= 0:
                if (session := channel.sessions.get(number)) is not None:
                    session.charge(duration_s)
            case ["ended", number, trace]:
                if trace is not None:
                    log.error("internal error in a live session: please report it\n%s", trace)
                if (session := channel.sessions.pop(number, None)) is not None:
                    session.end()
            case ["metrics", audio_s, texts_s, completed_s]:
                self._metrics.add_audio(audio_s)
                for delay_s in texts_s:
                    self._metrics.observe_text(delay_s)
                for delay_s in completed_s:
                    self._metrics.observe_completed(delay_s)
            case ["alive"]:
                pass
            case other:
                raise ValueError(f"unknown message {other[0]!r}")


@asynccontextmanager
async def open_session_pool(service: Service) -> AsyncIterator[None]:
    """The processes of the server's live sessions, if it has any: without them, sessions run in its own.

    They are connected to the engine of the default model, if it is never unloaded; other models come and go.
    """
    settings, loaded = service.settings, service.models.resident_default
    n_processes = 0
    if loaded is not None:
        n_processes = n_session_processes(loaded.model.device, settings.realtime_processes, settings.realtime_sessions)
    if loaded is None or not n_processes or loaded.runtime.add_client is None:
        yield
        return
    start = ProcessStart(service.names.of_model(loaded.id), SessionLimits.of(settings), n_processes)
    pool = service.realtime.pool = SessionPool(loaded.runtime.add_client, start, service.realtime.metrics)
    loaded.runtime.on_engine_restart(pool.renew_engine)
    watch = service.loops.start(pool.watch(), "the check of session processes")
    try:
        yield
    finally:
        await cancel_tasks([watch])
        await pool.close()
