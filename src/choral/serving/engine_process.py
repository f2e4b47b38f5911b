"""An engine in a process of its own: the parent's handle.

The process loads while this one goes on. Clients may be added from the start: they wait until it has loaded. When the
process ends, for whatever reason, its clients' windows fail with `EngineClosed`, and `restart` starts another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from choral.common.logs import LogFormat
from choral.config import EngineSettings
from choral.errors import EngineClosed, EngineError
from choral.longform.load_transcriber import OnDownload, load_transcriber
from choral.longform.transcriber import Transcriber
from choral.serving.child_process import death_reason, start_child
from choral.serving.engine_client import connect
from choral.serving.engine_main import LoadFunction, receive_packet, send_packet
from choral.serving.error_messages import error_from_name
from choral.serving.sample_arena import N_SLOTS

CLOSE_TIMEOUT_S = 20.0  # for the process to free its device; then it is killed


class EngineProcess:
    def __init__(
        self,
        model: str,
        settings: EngineSettings,
        *,
        on_download: OnDownload | None = None,
        on_exit: Callable[[str], None] | None = None,
        log_format: LogFormat | None = None,
        load: LoadFunction = load_transcriber,
    ) -> None:
        """`model` is a name, Hugging Face id or path; `load`, a module-level function, is what the process calls.

        `on_exit` gets the reason when the process ends by itself; it and `on_download` run on the handle's thread.
        """
        fields = dataclasses.asdict(settings)
        self._arguments = [f"{load.__module__}:{load.__qualname__}", model, fields, log_format]
        self._on_download, self._on_exit = on_download, on_exit
        self._drain_numbers = count()
        self._start()

    def _start(self) -> None:
        self._control, child_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._loaded: Future[None] = Future()
        self._drains: dict[int, Future[bool]] = {}  # by number: a reply may come when nobody waits for it any more
        self._failure: str | None = "the model is being loaded"
        self._is_closing = False
        started: Future[subprocess.Popen[bytes]] = Future()
        self._thread = threading.Thread(target=self._run, args=(child_control, started), name="choral-engine-process")
        self._thread.daemon = True
        self._thread.start()
        try:
            self._process = started.result()
        except EngineError:
            self._control.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failure(self) -> str | None:
        """Why it does not serve: it is loading, could not load, or has ended. Clients know the state of the engine."""
        return self._failure

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Raises the error of loading the model, `EngineClosed` if the process ended, or `TimeoutError`."""
        self._loaded.result(timeout_s)

    def add_client(self, connection: socket.socket) -> None:
        """Hand the engine's end of a connection to the process; it is closed here."""
        with connection, contextlib.suppress(OSError):  # if the process has ended, the client notices by its own end
            send_packet(self._control, "client", fds=(connection.fileno(),))

    def connect(self, n_windows: int = N_SLOTS) -> Transcriber:
        """A transcriber in this process; waits until the process has loaded."""
        ours, theirs = socket.socketpair()
        self.add_client(theirs)
        return connect(ours, n_windows)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new windows and wait for those submitted; False when the time ran out first, or the process ended."""
        drained = self._drains[number := next(self._drain_numbers)] = Future()
        try:
            send_packet(self._control, "drain", number, timeout_s)
            return drained.result(timeout_s)
        except (OSError, TimeoutError, EngineClosed):
            return False

    def restart(self) -> None:
        """End the process and start another; clients of the old one have ended."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the process; its clients' windows fail with `EngineClosed`. A second call has no effect."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._control.close()

    def _run(self, child_control: socket.socket, started: Future[subprocess.Popen[bytes]]) -> None:
        """Starts the process, because Linux kills it when the thread that started it ends, and reads its messages."""
        try:
            with child_control:
                arguments = [os.getpid(), *self._arguments]
                process = start_child("choral.serving.engine_main", arguments, child_control.fileno(), environment={})
        except EngineError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        while (received := receive_packet(self._control)) is not None:
            self._handle(received[0])
        self._end(process.wait())

    def _handle(self, message: list[Any]) -> None:
        match message:
            case ["downloading", n_done, n_total]:
                if self._on_download is not None:
                    self._on_download(n_done, n_total)
            case ["ready"]:
                self._failure = None
                self._loaded.set_result(None)
            case ["failed", name, text]:
                self._failure = text
                self._loaded.set_exception(error_from_name(name, text))
            case ["drained", number, is_drained]:
                self._drains.pop(number).set_result(is_drained)
            case _:
                raise TypeError(f"unknown packet: {message!r}")

    def _end(self, returncode: int) -> None:
        code = death_reason(returncode)
        reason = "the engine's process was closed" if self._is_closing else f"the engine's process has ended ({code})"
        self._failure = self._failure if self._loaded.done() and self._loaded.exception() else reason
        futures: list[Future[Any]] = [self._loaded, *self._drains.values()]
        for future in futures:
            if not future.done():
                future.set_exception(EngineClosed(reason))
        if self._on_exit is not None and not self._is_closing:
            self._on_exit(reason)
