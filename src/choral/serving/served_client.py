"""One client of an engine's server: its shared memory, its callers, and its windows in the engine.

Only the server's thread uses it. Every message is checked; one that no client of ours sends raises `ProtocolError`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.window import Aligned, AlignParams, Caller, Params, Window, WindowAudio
from choral.errors import ChoralError
from choral.options import Priority
from choral.serving import engine_protocol as protocol
from choral.serving.engine_protocol import Reply, Request, SubmittedWindow
from choral.serving.error_messages import encode_error
from choral.serving.hotword_transfer import ReceivedHotwords
from choral.serving.message_socket import Body, MessageSocket, ProtocolError
from choral.serving.sample_arena import MAX_WINDOW_SAMPLES, MappedArena

MAX_CALLERS = 2**16  # of a client
PAUSE_UNSENT_BYTES = 16 * 2**20  # a client that does not read its results is not read from
MAX_UNSENT_BYTES = 2**30  # and is dropped when those that were in the engine exceed this

Action = Callable[[], None]


class ServedClient:
    """One client: its shared memory, its callers and its windows in the engine. Only the server's thread uses it."""

    def __init__(
        self,
        connection: socket.socket,
        engine: AnyEngine,
        hello: bytes,
        call: Callable[[ServedClient, Action], None],
    ) -> None:
        """`call` runs an action for this client on the server's thread."""
        self._socket, self._engine, self._hello, self._call = connection, engine, hello, call
        self._messages = MessageSocket(connection, protocol.MAX_REQUEST_BYTES)
        self._arena: MappedArena | None = None  # until the client's first message
        self._callers: dict[int, Caller] = {}
        self._windows: dict[int, Future[Any]] = {}  # in the engine, by slot
        self._hotwords = ReceivedHotwords()
        self._is_testing = False
        self.has_unsent = False

    def fileno(self) -> int:
        return self._messages.fileno()

    @property
    def events(self) -> int:
        n_unsent = self._messages.n_unsent_bytes
        reading = selectors.EVENT_READ if n_unsent <= PAUSE_UNSENT_BYTES else 0
        return reading | (selectors.EVENT_WRITE if n_unsent else 0)

    def send(self, kind: Reply, *parts: Body) -> None:
        self._messages.send(kind, *parts)
        self.has_unsent = True

    def send_failure(self) -> None:
        self.send(Reply.FAILURE, json.dumps([self._engine.failure, self._engine.failed_devices]).encode())

    def flush(self) -> None:
        self._messages.flush()
        if self._messages.n_unsent_bytes > MAX_UNSENT_BYTES:
            raise ProtocolError(f"it has not read {self._messages.n_unsent_bytes:,} bytes of results")
        self.has_unsent = False

    def receive(self) -> None:
        if self._arena is None:
            self._arena = self._receive_arena()
            self.send(Reply.HELLO, self._hello)
            self.send_failure()
            return
        for kind, body in self._messages.receive():
            match kind:
                case Request.SUBMIT:
                    self._submit(protocol.decode_window(body, self._hotwords.tries), self._arena)
                case Request.HOTWORDS:
                    self._hotwords.add(body)
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
            self.send(Reply.WINDOW_FAILED, protocol.SLOT.pack(slot), encode_error(error))
            return
        self._windows[slot] = future
        report = partial(self._report, slot, submitted.params, future)
        future.add_done_callback(lambda _: self._call(self, report))

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
            self.send(Reply.WINDOW_FAILED, protocol.SLOT.pack(slot), encode_error(error))
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
            reply = encode_error(error)
        self._call(self, partial(self._end_self_test, reply))

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
