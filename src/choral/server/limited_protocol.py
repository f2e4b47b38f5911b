"""One HTTP connection, with limits: uvicorn's protocol, and requests in the usual shape without its parser.

uvicorn accepts any number of connections, and waits forever for the headers of a request, for the rest of a body that
the response did not need, and for a client that does not read; this protocol ends such connections.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from choral.server.regular_request import RegularCycle, RequestHead, read_head

HEALTH = b"/health"  # checks with these paths are urgent


class LimitedProtocol(H11Protocol):
    """Closes connections that make no progress; the bodies of requests have their own timeouts in `upload`."""

    headers_timeout_s = 20.0
    response_stall_s = 60.0
    max_connections = 4096
    without_request: dict[LimitedProtocol, None]  # oldest first; shared by the connections of a server
    _timer: asyncio.TimerHandle | None = None  # for the headers
    _stall: asyncio.TimerHandle | None = None
    _linger: asyncio.TimerHandle | None = None
    _regular: RegularCycle | None = None  # a request in the usual shape that has not ended
    _ahead: tuple[bytes, ...] = ()  # what was received after it

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self.without_request), self)
            oldest.transport.abort()
            self.without_request.pop(oldest, None)
            if oldest is self:
                return
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        if self._regular is not None:
            self._continue_regular(self._regular, data)
        elif self._is_idle and (head := read_head(data)) is not None:
            self._start_regular(head, data)
        else:
            self._receive_general(data)

    def _receive_general(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.our_state is not h11.DONE:
            _cancel(self._linger)
            self._update_timer()

    # Requests in the usual shape

    @property
    def _is_idle(self) -> bool:
        """The general parser waits for a request, and has none of it."""
        is_waiting = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        return is_waiting and not self.conn.trailing_data[0]

    def _start_regular(self, head: RequestHead, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._stop_timer()
        raw_path, _, query_string = head.target.partition(b"?")
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": head.method,
            "root_path": self.root_path,
            "path": self.root_path + unquote(raw_path.decode("ascii")),
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query_string,
            "headers": head.headers,
            "state": self.app_state.copy(),
        }
        self.cycle = self._regular = RegularCycle(self, scope, head.body_bytes, self.on_response_complete)
        task = _start_task(self._regular.run_asgi(self.app), self.loop, is_urgent=head.target.startswith(HEALTH))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        if len(data) > head.n_bytes:
            self._continue_regular(self._regular, data[head.n_bytes :])

    def _continue_regular(self, cycle: RegularCycle, data: bytes) -> None:
        """The next request waits in `_ahead`, for the general parser, until this one has ended."""
        if rest := cycle.feed(data):
            self._ahead = (*self._ahead, rest)
            self.flow.pause_reading()
        if cycle.response_complete:  # this was the rest of a body that the response did not need
            self._unset_keepalive_if_required()
            if not cycle.body_left:
                self._end_regular()
                self._update_timer()

    def _end_regular(self) -> None:
        self._regular = None
        _cancel(self._linger)
        ahead, self._ahead = b"".join(self._ahead), ()
        if ahead and not self.transport.is_closing():
            self.flow.resume_reading()
            self._receive_general(ahead)

    # The end of requests and connections

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        _cancel(self._linger)
        self.resume_writing()
        super().connection_lost(exc)
        if self._regular is not None:
            self._regular.disconnect.notify()

    def send_400_response(self, msg: str) -> None:
        """For bytes that are not HTTP. A route that is reading them as its body must not respond as well."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the response has begun
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_timer()  # between requests uvicorn's keep-alive timeout applies
        is_reading = self.conn.their_state is h11.SEND_BODY if self._regular is None else self._regular.body_left > 0
        if is_reading:  # the client sees a refusal once it has sent the rest
            self._linger = self.loop.call_later(self.response_stall_s, self.transport.abort)
        elif self._regular is not None:
            self._end_regular()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.response_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall)

    def _update_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.headers_timeout_s, self.transport.close)
            self.without_request[self] = None

    def _stop_timer(self) -> None:
        self.without_request.pop(self, None)
        _cancel(self._timer)
        self._timer = None


def _start_task(
    work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, *, is_urgent: bool
) -> asyncio.Task[None]:
    """What is urgent begins now, and not in the next step of the loop, which has all that became ready in this one."""
    if is_urgent and sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
