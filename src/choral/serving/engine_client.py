"""An engine in another process: the interface of `Engine`, over a socket and shared memory.

`submit` hashes the samples, copies them to shared memory and sends a short message; it never blocks. A refusal by the
server, such as `QueueFull`, arrives in the future. When the server goes away, all windows fail with `EngineClosed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.engine.engine import CLOSED, EngineStats, require_slots
from choral.engine.steps import Pending, n_slots_of
from choral.engine.window import Caller, DecodeParams, Result, Window
from choral.errors import EngineClosed, UsageError
from choral.longform.transcriber import Transcriber
from choral.model.tokenizer import Tokenizer
from choral.serving import engine_protocol as protocol
from choral.serving.engine_protocol import EngineDescription, Reply, Request
from choral.serving.error_messages import decode_error
from choral.serving.hotword_transfer import SentHotwords
from choral.serving.message_socket import Body, MessageSocket
from choral.serving.sample_arena import MAX_WINDOW_SAMPLES, N_SLOTS, SampleArena
from choral.serving.window_backlog import ClientWindow, WindowBacklog

LOST = "the engine's process has ended"


def connect(connection: socket.socket, n_windows: int = N_SLOTS) -> Transcriber:
    """A transcriber on the engine whose server has the other end of the socket; more than `n_windows` wait here."""
    client = EngineClient(connection, n_windows)
    tokenizer = Tokenizer.for_checkpoint(client.dims, client.vocabulary)
    return Transcriber(client, tokenizer, client.dims)


class EngineClient:
    """Safe to use from any number of threads. `close` ends its thread, and so does the end of the server."""

    def __init__(self, connection: socket.socket, n_slots: int = N_SLOTS) -> None:
        """Waits for the server's description of its engine; `EngineClosed` if there is none."""
        self._lock = threading.Lock()
        self._closed_reason: str | None = None  # why it takes no more windows
        self._is_over = False  # the connection is closed
        self._failure: str | None = None  # of the engine
        self._failed_devices: dict[str, str] = {}  # while others may work
        self._arena = SampleArena(n_slots)
        self._in_flight: dict[int, ClientWindow] = {}  # by slot
        self._backlog = WindowBacklog()
        self._callers: weakref.WeakKeyDictionary[Caller, int] = weakref.WeakKeyDictionary()
        self._cancelled: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._ended_callers: deque[int] = deque()
        self._caller_numbers = count(1)
        self._sent_hotwords = SentHotwords()
        self._query_lock = threading.Lock()
        hello: Future[Body] = Future()
        self._answers: dict[int, Future[Body]] = {Reply.HELLO: hello}  # that are waited for
        self._stats = EngineStats(**dict.fromkeys(EngineStats.__annotations__, 0))
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._socket = connection
        connection.setblocking(True)
        with contextlib.suppress(ConnectionError):  # the thread notices a server that is gone
            socket.send_fds(connection, [protocol.HELLO.pack(n_slots)], [self._arena.fd])
        self._messages = MessageSocket(connection)
        self._thread = threading.Thread(target=self._run, name="choral-engine-client", daemon=True)
        self._thread.start()
        self._describe(EngineDescription.from_json(hello.result()))

    def _describe(self, engine: EngineDescription) -> None:
        self.name, self.device, self.compute_type = engine.name, engine.device, engine.compute_type
        self.n_devices, self.capacity, self.settings = engine.n_devices, engine.capacity, engine.settings
        self.dims, self.vocabulary = engine.dims, engine.vocabulary

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        """As `Engine.submit`, but a full queue fails the future."""
        samples, params = window.audio.samples, window.params
        require_slots(n_slots_of(params), self.capacity)
        if samples.size > MAX_WINDOW_SAMPLES:
            raise UsageError(f"a window has {samples.size:,} samples; it must have at most {MAX_WINDOW_SAMPLES:,}")
        with self._lock:
            self._require_open()
            number = 0 if caller is None else self._number_of(caller)
        caller = caller or Caller()
        message = protocol.encode_window(window, number, caller.priority)  # hashes the samples: not under the lock
        hotwords = params.hotwords if isinstance(params, DecodeParams) else None
        submitted = ClientWindow(samples, message, hotwords, caller, Pending())
        with self._lock:
            self._require_open()
            if caller in self._cancelled:
                raise CancelledError
            slot = self._arena.take()
            if slot is None:
                self._backlog.put(submitted)
                return submitted.future
            self._in_flight[slot] = submitted
            memory = self._arena.memory(slot)
        self._start(submitted, slot, memory)
        return submitted.future

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a window: its future ends at once, and it leaves the engine before the next step."""
        future.cancel()
        self._forget_cancelled()

    def cancel_all(self, caller: Caller) -> None:
        """Cancel all windows of a caller, and refuse those it still submits."""
        with self._lock:
            self._cancelled.add(caller)
            windows = [*self._in_flight.values(), *self._backlog]
        for window in windows:
            if window.caller is caller:
                window.future.cancel()
        self._forget_cancelled()

    @property
    def is_working(self) -> bool:
        """Whether it takes windows."""
        return self._closed_reason is None

    @property
    def failure(self) -> str | None:
        """Why no request can succeed: this client or the engine is closed, or its device fails at every window."""
        return self._closed_reason or self._failure

    @property
    def failed_devices(self) -> dict[str, str]:
        """Why each device fails that does: as the engine says or, once there is none, all of them."""
        if self._closed_reason is None:
            return self._failed_devices
        return dict.fromkeys(self.device.split(", "), self._closed_reason)

    @property
    def n_in_flight(self) -> int:
        with self._lock:
            return len(self._in_flight) + len(self._backlog)

    @property
    def stats(self) -> EngineStats:
        """Those of the whole engine; once it has ended, the last ones."""
        with contextlib.suppress(EngineClosed):
            self._stats = EngineStats(**json.loads(bytes(self._query(Request.STATS, Reply.STATS))))
        return self._stats

    def self_test(self) -> None:
        answer = self._query(Request.SELF_TEST, Reply.SELF_TEST)
        if answer != b"null":
            raise decode_error(answer)

    def clear_cache(self) -> None:
        with self._lock:
            if self.is_working:
                self._send(Request.CLEAR_CACHE)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new windows and wait for those submitted; False when the time ran out first."""
        with self._lock:
            self._closed_reason = self._closed_reason or CLOSED
            pending = [window.future for window in [*self._in_flight.values(), *self._backlog]]
        return not wait(pending, timeout_s).not_done

    def close(self) -> None:
        """Fail all windows and end the thread; a second call has no effect."""
        with self._lock:
            self._closed_reason = self._closed_reason or CLOSED
            if self._socket.fileno() >= 0:
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _require_open(self) -> None:
        if self._closed_reason is not None:
            raise EngineClosed(self._closed_reason)

    def _number_of(self, caller: Caller) -> int:
        number = self._callers.get(caller)
        if number is None:
            number = self._callers[caller] = next(self._caller_numbers)
            # Runs wherever the caller is garbage collected, even under the lock: the server is told with the next
            # message.
            weakref.finalize(caller, self._ended_callers.append, number).atexit = False
        return number

    def _start(self, window: ClientWindow, slot: int, memory: npt.NDArray[np.float32]) -> None:
        memory[: window.samples.size] = window.samples
        with self._lock:
            if window.hotwords is not None and self._sent_hotwords.add(window.hotwords):
                self._send(Request.HOTWORDS, window.hotwords.packed)
            self._send(Request.SUBMIT, protocol.SLOT.pack(slot), window.message)
        window.future.add_done_callback(partial(self._send_cancel, slot))

    def _send_cancel(self, slot: int, future: Future[Any]) -> None:
        if future.cancelled():
            with self._lock:
                window = self._in_flight.get(slot)
                if window is not None and window.future is future:
                    self._send(Request.CANCEL, protocol.SLOT.pack(slot))

    def _forget_cancelled(self) -> None:
        with self._lock:
            self._backlog.remove_cancelled()

    def _send(self, kind: Request, *parts: bytes) -> None:
        """Under the lock."""
        if self._is_over:
            return
        while self._ended_callers:
            self._messages.send(Request.FORGET_CALLER, protocol.SLOT.pack(self._ended_callers.popleft()))
        self._messages.send(kind, *parts)
        self._messages.flush()
        if self._messages.n_unsent_bytes:
            os.eventfd_write(self._wake_fd, 1)  # the thread sends the rest

    def _query(self, request: Request, reply: Reply) -> Body:
        with self._query_lock:
            with self._lock:
                if self._is_over:
                    raise EngineClosed(self._closed_reason or LOST)
                answer = self._answers[reply] = Future()
                self._send(request)
            return answer.result()

    def _run(self) -> None:
        try:
            while True:
                self._wait()
                for kind, body in self._messages.receive():
                    self._handle(kind, body)
        except EOFError:
            pass
        finally:
            self._end()

    def _wait(self) -> None:
        """Until something can be received; sends what the socket did not take before."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._messages, select.POLLIN | (select.POLLOUT if self._messages.n_unsent_bytes else 0))
        for fd, events in poll.poll():
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif events & select.POLLOUT:
                with self._lock:
                    self._messages.flush()

    def _handle(self, kind: int, body: Body) -> None:
        if kind == Reply.FAILURE:
            self._failure, self._failed_devices = json.loads(bytes(body))
        elif kind in self._answers:
            self._answers.pop(kind).set_result(body)
        else:
            (slot,) = protocol.SLOT.unpack_from(body)
            self._finish(slot, Reply(kind), body[protocol.SLOT.size :])

    def _finish(self, slot: int, kind: Reply, body: Body) -> None:
        """Resolve the future of a window; its slot goes to the next window that waits, or is free."""
        with self._lock:
            ended = self._in_flight.pop(slot)
            waiting = self._backlog.pop()
            if waiting is None:
                self._arena.free(slot)
            else:
                self._in_flight[slot] = waiting
            memory = self._arena.memory(slot)
        if waiting is not None:
            self._start(waiting, slot, memory)
        if not ended.future.set_running_or_notify_cancel():
            return
        if kind == Reply.WINDOW_FAILED:
            ended.future.set_exception(decode_error(body))
        else:
            ended.future.set_result(protocol.decode_result(kind, body))

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            self._closed_reason = self._closed_reason or LOST
            windows = [*self._in_flight.values(), *self._backlog]
            self._in_flight.clear()
            self._backlog.clear()
            self._arena.close()
            self._messages.close()
            os.close(self._wake_fd)
        error = EngineClosed(self._closed_reason)
        for future in [*(window.future for window in windows), *self._answers.values()]:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
