"""An engine in a process of its own that is started again whenever it ends: the interface of `Engine`.

The windows of a process that ends fail with `EngineClosed`. While there is no process, windows are refused with that
error, and `failure` says why.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from choral.common.backoff import backoff_s
from choral.common.logs import LogFormat
from choral.config import EngineSettings
from choral.engine.engine import CLOSED
from choral.errors import ChoralError
from choral.longform.load_transcriber import OnDownload, load_transcriber
from choral.longform.transcriber import Transcriber
from choral.serving.engine_main import LoadFunction
from choral.serving.engine_process import EngineProcess
from choral.serving.replaceable_engine import ReplaceableEngine
from choral.serving.sample_arena import N_SLOTS

log = logging.getLogger("choral.serving")
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # before a restart that follows one that failed; doubles each time


class SupervisedEngine(ReplaceableEngine):
    def __init__(
        self,
        model: str,
        settings: EngineSettings,
        *,
        on_download: OnDownload | None = None,
        log_format: LogFormat | None = None,
        load: LoadFunction = load_transcriber,
        n_windows: int = N_SLOTS,
    ) -> None:
        """Waits until the process has loaded the model; raises the error of loading it.

        At most `n_windows` that are submitted here are with the engine at a time.
        """
        self._n_windows = n_windows
        self.on_restart: Callable[[], None] = lambda: None  # clients of the old process have ended
        self._is_closed = False
        self._lock = threading.Lock()  # a process is not started while this is being closed
        self._has_ended, self._stop = threading.Event(), threading.Event()
        self._process = EngineProcess(
            model,
            settings,
            on_download=on_download,
            on_exit=lambda reason: self._has_ended.set(),
            log_format=log_format,
            load=load,
        )
        try:
            self._process.wait_until_ready()
            self._use(self._process.connect(n_windows))
        except BaseException:
            self._process.close()
            raise
        self._thread = threading.Thread(target=self._supervise, name="choral-engine-supervisor", daemon=True)
        self._thread.start()

    def _use(self, transcriber: Transcriber) -> None:
        self.tokenizer, self.dims = transcriber.tokenizer, transcriber.dims
        self.replace(transcriber.engine)

    @property
    def transcriber(self) -> Transcriber:
        return Transcriber(self, self.tokenizer, self.dims)

    @property
    def pid(self) -> int:
        return self._process.pid

    def add_client(self, connection: socket.socket) -> None:
        """Hand the engine's end of a connection to the process that runs now, or will be started next."""
        self._process.add_client(connection)

    @property
    def failure(self) -> str | None:
        return CLOSED if self._is_closed else self._process.failure or self._client.failure

    @property
    def failed_devices(self) -> dict[str, str]:
        if self._is_closed or self._process.failure:
            return dict.fromkeys(self.device.split(", "), self.failure or CLOSED)
        return self._client.failed_devices

    def drain(self, timeout_s: float | None = None) -> bool:
        return self._process.drain(timeout_s)

    def close(self) -> None:
        """End the process; a second call has no effect."""
        self._is_closed = True
        self._stop.set()
        self._has_ended.set()
        with self._lock:
            self._process.close()
        self._thread.join()
        self._client.close()

    def _supervise(self) -> None:
        n_failures = 0
        while self._has_ended.wait() and not self._is_closed:
            log.error("%s: it is started again", self._process.failure)
            try:
                self._restart()
            except ChoralError as error:  # it ended again, or cannot be loaded any more
                if self._is_closed:
                    return
                n_failures += 1
                log.error("the engine could not be started again: %s", self._process.failure or error)
                self._has_ended.set()
                self._stop.wait(backoff_s(n_failures, FIRST_PAUSE_S, MAX_PAUSE_S))
            else:
                n_failures = 0

    def _restart(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._has_ended.clear()
            self._process.restart()
        transcriber = self._process.connect(self._n_windows)
        self._client.close()
        self.on_restart()  # before windows are taken again: requests must not go to clients of the old process
        self._use(transcriber)
        log.warning("the engine works again")
