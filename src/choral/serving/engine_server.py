"""Serves an engine to other processes, over connected sockets and shared memory.

One thread reads all clients and writes all results; the engine's thread only appends to a queue and wakes it. A client
that disappears, or sends what no client of ours sends, is dropped: its windows are cancelled and its memory unmapped,
and the others go on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import selectors
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from choral.engine.window import Aligned, AlignParams, Caller, Params, Window, WindowAudio
from choral.errors import ChoralError
from choral.longform.transcriber import Transcriber
from choral.serving import engine_protocol as protocol
from choral.serving.engine_protocol import EngineDescription, Reply, Request, SubmittedWindow
from choral.serving.message_socket import Body, MessageSocket, ProtocolError
from choral.serving.sample_arena import MAX_WINDOW_SAMPLES, MappedArena
from choral.types import Priority

log = logging.getLogger("choral.serving")
MAX_CALLERS = 2**16  # of a client
PAUSE_UNSENT_BYTES = 16 * 2**20  # a client that does not read its results is not read from
MAX_UNSENT_BYTES = 2**30  # and is dropped when those that were in the engine exceed this

Action = Callable[[], None]


class EngineServer:
    def __init__(self, transcriber: Transcriber) -> None:
        """The engine stays the caller's: `close` does not close it."""
        self.engine = transcriber.engine
        description = describe(transcriber)
        self.hello = description.to_json()
        self._failure = description.failure
        self._clients: set[ServedClient] = set()
        self._actions: deque[Action] = deque()  # for the server's thread, from any other
        self._is_woken = self._is_closed = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not in `close`: windows that end later still wake the thread, and the number may be that of another file then.
        weakref.finalize(self, os.close, self._wake_fd)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="choral-engine-server", daemon=True)
        self._thread.start()

    def add_client(self, connection: socket.socket) -> None:
        """Serve the client at the other end; from any thread. The server closes the socket."""
        self.call(lambda: self._add(connection))

    @property
    def n_clients(self) -> int:
        return len(self._clients)

    def call(self, action: Action) -> None:
        """Run an action on the server's thread; never blocks, so the engine's thread may call it."""
        self._actions.append(action)
        if not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Drop all clients and end the thread; a second call has no effect."""
        self._is_closed = True
        self.call(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            for key, events in self._selector.select():
                if key.data is None:
                    os.eventfd_read(self._wake_fd)
                elif events & selectors.EVENT_READ:
                    self.guard(key.data, key.data.receive)
                else:
                    key.data.has_unsent = True
            self._run_actions()
            self._report_failure()
            for client in [client for client in self._clients if client.has_unsent]:
                self.guard(client, client.flush)
        self._run_actions()  # clients that were added meanwhile are dropped too
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()

    def _run_actions(self) -> None:
        self._is_woken = False  # first, so that what comes while this runs wakes the thread again
        while self._actions:
            self._actions.popleft()()

    def _add(self, connection: socket.socket) -> None:
        client = ServedClient(self, connection)
        self._clients.add(client)
        self._selector.register(client, client.events, client)

    def guard(self, client: ServedClient, action: Action) -> None:
        """Run an action for a client; whatever goes wrong ends that client only."""
        if client not in self._clients:
            return
        try:
            action()
            events = client.wanted_events
            if events != client.events:
                client.events = events
                self._selector.modify(client, events, client)
        except EOFError:
            self._drop(client)
        except ProtocolError as error:
            log.warning("a client of the engine was dropped: %s", error)
            self._drop(client)
        except Exception:
            log.exception("a client of the engine was dropped")
            self._drop(client)

    def _drop(self, client: ServedClient) -> None:
        self._clients.discard(client)
        self._selector.unregister(client)
        client.close()

    def _report_failure(self) -> None:
        failure = self.engine.failure
        if failure != self._failure:
            self._failure = failure
            for client in self._clients:
                client.send(Reply.FAILURE, json.dumps(failure).encode())


class ServedClient:
    """One client: its shared memory, its callers and its windows in the engine. Only the server's thread uses it."""

    def __init__(self, server: EngineServer, connection: socket.socket) -> None:
        self._server, self._engine = server, server.engine
        self._socket = connection
        self._messages = MessageSocket(connection, protocol.MAX_REQUEST_BYTES)
        self._arena: MappedArena | None = None  # until the client's first message
        self._callers: dict[int, Caller] = {}
        self._windows: dict[int, Future[Any]] = {}  # in the engine, by slot
        self._is_testing = False
        self.events = selectors.EVENT_READ  # that the server waits for
        self.has_unsent = False

    def fileno(self) -> int:
        return self._messages.fileno()

    @property
    def wanted_events(self) -> int:
        n_unsent = self._messages.n_unsent_bytes
        reading = selectors.EVENT_READ if n_unsent <= PAUSE_UNSENT_BYTES else 0
        return reading | (selectors.EVENT_WRITE if n_unsent else 0)

    def send(self, kind: Reply, *parts: Body) -> None:
        self._messages.send(kind, *parts)
        self.has_unsent = True

    def flush(self) -> None:
        self._messages.flush()
        if self._messages.n_unsent_bytes > MAX_UNSENT_BYTES:
            raise ProtocolError(f"it has not read {self._messages.n_unsent_bytes:,} bytes of results")
        self.has_unsent = False

    def receive(self) -> None:
        if self._arena is None:
            self._arena = self._receive_arena()
            self.send(Reply.HELLO, self._server.hello)
            return
        for kind, body in self._messages.receive():
            match kind:
                case Request.SUBMIT:
                    self._submit(protocol.decode_window(body), self._arena)
                case Request.CANCEL:
                    # A window may have ended while this was on its way.
                    if (future := self._windows.get(protocol.decode_number(body))) is not None:
                        self._engine.cancel(future)
                case Request.FORGET_CALLER:
                    self._callers.pop(protocol.decode_number(body), None)
                case Request.CLEAR_CACHE:
                    self._engine.clear_cache()
                case Request.STATS:
                    self.send(Reply.STATS, json.dumps(dataclasses.asdict(self._engine.stats)).encode())
                case Request.SELF_TEST:
                    self._start_self_test()
                case _:
                    raise ProtocolError(f"a message of kind {kind}")

    def _receive_arena(self) -> MappedArena:
        """The first message, which is short enough to arrive in one piece."""
        try:
            body, fds, _, _ = socket.recv_fds(self._socket, protocol.HELLO.size, 1)
        except ConnectionError as error:
            raise EOFError from error
        if not body:
            raise EOFError
        try:
            return MappedArena(fds[0], *protocol.HELLO.unpack(body))
        except (ValueError, IndexError, struct.error) as error:
            raise ProtocolError(f"a malformed first message: {error}") from error
        finally:
            for fd in fds:
                os.close(fd)

    def _submit(self, submitted: SubmittedWindow, arena: MappedArena) -> None:
        slot = submitted.slot
        if slot in self._windows or slot >= arena.n_slots or submitted.n_samples > MAX_WINDOW_SAMPLES:
            raise ProtocolError(f"slot {slot} is in use, unknown or too small")
        audio = WindowAudio(
            samples=arena.read(slot, submitted.n_samples),
            lead=submitted.lead,
            n_mel_frames=submitted.n_mel_frames,
            mel_peak=submitted.mel_peak,
        )
        vars(audio)["key"] = submitted.key  # the client has computed it
        caller = self._caller(submitted.caller, submitted.priority)
        try:
            future = self._engine.submit(Window(audio, submitted.params), caller)
        except (ChoralError, CancelledError) as error:
            self.send(Reply.WINDOW_FAILED, protocol.SLOT.pack(slot), protocol.encode_error(error))
            return
        self._windows[slot] = future
        report = partial(self._server.guard, self, partial(self._report, slot, submitted.params, future))
        future.add_done_callback(lambda _: self._server.call(report))

    def _caller(self, number: int, priority: Priority) -> Caller | None:
        if not number:
            return None
        if number not in self._callers:
            if len(self._callers) == MAX_CALLERS:
                raise ProtocolError(f"more than {MAX_CALLERS} callers")
            self._callers[number] = Caller(priority)
        return self._callers[number]

    def _report(self, slot: int, params: Params[Any], future: Future[Any]) -> None:
        """Send the result of a window that has ended; the client may use its slot again."""
        del self._windows[slot]
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.send(Reply.WINDOW_FAILED, protocol.SLOT.pack(slot), protocol.encode_error(error))
            return
        result = future.result()
        if isinstance(result, Aligned) and isinstance(params, AlignParams):
            # The rest is attention to padding, which nobody reads.
            result = dataclasses.replace(result, scores=result.scores[:, :, : params.n_frames])
        kind, parts = protocol.encode_result(slot, result)
        self.send(kind, *parts)

    def _start_self_test(self) -> None:
        if self._is_testing:
            raise ProtocolError("two self-tests at once")
        self._is_testing = True
        threading.Thread(target=self._self_test, name="choral-self-test", daemon=True).start()

    def _self_test(self) -> None:
        reply = b"null"
        try:
            self._engine.self_test()
        except ChoralError as error:
            reply = protocol.encode_error(error)
        self._server.call(partial(self._server.guard, self, partial(self._end_self_test, reply)))

    def _end_self_test(self, reply: bytes) -> None:
        self._is_testing = False
        self.send(Reply.SELF_TEST, reply)

    def close(self) -> None:
        """The memory is unmapped when the last of the windows has left the engine."""
        for future in list(self._windows.values()):
            self._engine.cancel(future)
        self._windows.clear()
        self._arena = None
        self._messages.close()


def describe(transcriber: Transcriber) -> EngineDescription:
    engine = transcriber.engine
    return EngineDescription(
        name=engine.name,
        device=engine.device,
        compute_type=engine.compute_type,
        n_devices=engine.n_devices,
        failure=engine.failure,
        capacity=engine.capacity,
        settings=engine.settings,
        dims=transcriber.dims,
        vocabulary=transcriber.tokenizer.vocabulary,
    )
