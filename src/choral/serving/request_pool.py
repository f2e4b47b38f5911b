"""A pool of request processes: requests in, events out, with everything between them in other processes.

`start` and `cancel` may be called from any thread and never block; events are reported on the pool's own thread, which
owns all state, or in the event loop that it was given instead. Processes are started on demand, except for a few that
are kept. A process that crashes, hangs or exhausts its memory costs only the request that caused it: the others run
again in another process, and their events continue where they were.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from choral.audio.recording import decode_into
from choral.serving.connected_process import ConnectedProcess
from choral.serving.host_limiter import host_of
from choral.serving.pool_settings import N_LANES, PoolSettings
from choral.serving.pooled_request import PooledRequest
from choral.serving.request_dispatcher import RequestDispatcher
from choral.serving.request_events import OnEvent, TranscribeRequest
from choral.serving.request_inputs import share_input
from choral.serving.request_protocol import ProcessConfig
from choral.serving.request_run import DecodeFunction

log = logging.getLogger("choral.serving")
CHECK_INTERVAL_S = 0.5  # of deadlines
MAX_READY_PER_STEP = 4  # processes whose messages are read in one step of an event loop


@dataclass(frozen=True)
class RequestBacklog:
    """How many requests are in each phase."""

    waiting: int
    fetching: int
    decoding: int
    transcribing: int


class NotShareable(Exception):
    """The audio is a stream that only this process can read."""


class RequestPool:
    def __init__(
        self,
        add_client: Callable[[socket.socket], object],
        settings: PoolSettings,
        *,
        decode: DecodeFunction = decode_into,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`add_client` connects a process to the engine. `decode` is what processes run: a module-level function.

        With the `loop` that runs in the calling thread, the pool works there: a thread of its own would compete with
        the loop for the GIL, at each of several messages for every request. It must be closed in the same thread.
        """
        self.settings = settings
        config = ProcessConfig(
            limits=settings.limits,
            max_memory_s=settings.max_memory_s,
            n_requests=N_LANES * settings.n_requests + settings.fetches,
        )
        self._selector = selectors.DefaultSelector()
        decode_name = f"{decode.__module__}:{decode.__qualname__}"

        def start_process() -> ConnectedProcess:
            return ConnectedProcess(self._selector, add_client, config, decode_name)

        self._dispatcher = RequestDispatcher(settings, start_process, self._run_in_background)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        weakref.finalize(self, os.close, self._wake_fd)  # not in `close`: another thread may be about to write to it
        self._is_awake = False
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()  # for the pool's thread
        self._requests: dict[int, PooledRequest] = {}  # that have not ended
        self._is_closed = False
        self._next_check_s = 0.0
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # of the loop, for the next check
        if loop is None:
            self._thread = threading.Thread(target=self._run, name="choral-requests", daemon=True)
            self._thread.start()
        else:
            self._thread = threading.current_thread()
            loop.add_reader(self._selector.fileno(), self._run_in_loop)
        self._wake()  # starts the processes that are kept

    def start(self, request: TranscribeRequest, on_event: OnEvent) -> PooledRequest:
        """Raises `NotShareable`, and a `ChoralError` for audio that cannot be used; all other errors are events."""
        if self._is_closed:
            raise RuntimeError("the request pool is closed")
        shared = share_input(request.audio, self.settings.limits, request.options.channels)
        if shared is None:
            raise NotShareable
        host = host_of(shared.ref.name) if shared.ref.kind == "url" else None
        pooled = PooledRequest(request, shared, host, on_event)
        pooled.on_cancel, pooled.on_end = self._cancel, self._end
        self._call(self._add, pooled)
        return pooled

    def renew(self) -> None:
        """Requests that start from now on run in new processes, connected to the engine that there is now."""
        self._call(lambda _: self._dispatcher.retire_all(), None)

    @property
    def backlog(self) -> RequestBacklog:
        phases = Counter[str](request.phase for request in list(self._requests.values()) if not request.is_done)
        return RequestBacklog(**{phase: phases[phase] for phase in RequestBacklog.__dataclass_fields__})

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [process.pid for process in list(self._dispatcher.processes)]

    def close(self) -> None:
        """Cancel all requests and end the processes."""
        is_first, self._is_closed = not self._is_closed, True
        if self._loop is not None:
            if is_first:
                self._end_all()
            return
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> RequestPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Any thread

    def _cancel(self, request: PooledRequest) -> None:
        self._call(self._dispatcher.cancel, request)

    def _call(self, function: Callable[[Any], None], argument: Any) -> None:
        self._calls.append((function, argument))
        if self._is_awake:
            return
        if self._loop is not None and threading.current_thread() is self._thread:
            self._run_in_loop(has_messages=False)
        else:
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _run_in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def run() -> None:
            self._call(then, work())

        threading.Thread(target=run, name="choral-process-end", daemon=True).start()

    # The pool's thread

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._is_awake = False  # from here on, calls wake the selector
                self._step(self._selector.select(0 if self._calls else self._timeout_s()))
        except BaseException:
            log.critical("the request pool has failed: please report it", exc_info=True)
        finally:
            self._end_all()

    def _end_all(self) -> None:
        self._is_closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._selector.fileno())
            if self._timer is not None:
                self._timer.cancel()
        self._dispatcher.close()
        for request in list(self._requests.values()):
            request.end_cancelled()
            request.shared.close()
        self._selector.close()

    def _step(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        self._is_awake = True
        for key, events in ready:
            if key.data is None:
                os.eventfd_read(self._wake_fd)
            else:
                self._serve(key.data, events)
        while self._calls:
            function, argument = self._calls.popleft()
            function(argument)
        if time.monotonic() >= self._next_check_s:
            self._dispatcher.check_deadlines()
            self._next_check_s = time.monotonic() + CHECK_INTERVAL_S
        self._dispatcher.dispatch()

    def _run_in_loop(self, *, has_messages: bool = True) -> None:
        """One step, with the messages of a few processes: engines end many requests at once."""
        assert self._loop is not None
        if self._is_closed:
            return
        try:
            self._step(self._selector.select(0)[:MAX_READY_PER_STEP] if has_messages else [])
        except Exception:
            log.critical("the request pool has failed: please report it", exc_info=True)
            self._end_all()
            return
        self._is_awake = False
        if self._calls:  # of a thread that found it awake
            self._wake()
        timeout_s = self._timeout_s()
        if self._timer is None and timeout_s is not None:
            self._timer = self._loop.call_later(timeout_s, self._check_in_loop)

    def _check_in_loop(self) -> None:
        self._timer = None
        self._run_in_loop(has_messages=False)

    def _timeout_s(self) -> float | None:
        """Until the next check of deadlines; while nothing runs, there are none."""
        return max(0.0, self._next_check_s - time.monotonic()) if self._dispatcher.has_running else None

    def _serve(self, process: ConnectedProcess, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            process.flush()
        if events & selectors.EVENT_READ:
            self._dispatcher.receive(process)

    def _add(self, request: PooledRequest) -> None:
        self._requests[request.id] = request
        self._dispatcher.add(request)

    def _end(self, request: PooledRequest) -> None:
        self._requests.pop(request.id, None)
