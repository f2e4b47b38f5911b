"""The engine: takes windows from any thread, decodes them together on the one thread that owns the device.

Encoder results are kept by content for as long as there is room, so that a retry at another temperature, language
detection, or word alignment on the same audio never encodes it again. A window that is no longer wanted stops at its
next token. The thread ends with the engine: when it is closed, when it is forgotten, and when the program ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choral.config import EngineSettings
from choral.engine.window import Result, Window
from choral.engine.worker import Job, Worker
from choral.errors import EngineClosed
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from choral.engine.torch_runner import TorchRunner


@dataclass(frozen=True)
class EngineStats:
    windows: int  # finished, failed ones included
    encoded: int  # went through the encoder
    cache_hits: int  # found their audio encoded already
    steps: int  # passes through the decoder, each one token further for all windows in it


class Engine:
    def __init__(self, runner: TorchRunner) -> None:
        self.device, self.compute_type = str(runner.device), runner.compute_type
        self._worker = Worker(runner)
        self._closing = threading.Lock()
        self._is_closed = False
        thread = threading.Thread(target=self._worker.run, name="choral-engine", daemon=True)
        thread.start()
        # Also at the program's end: an interpreter that goes away under a thread in torch aborts.
        self._end = weakref.finalize(self, end_thread, self._worker, thread)

    @property
    def stats(self) -> EngineStats:
        worker = self._worker
        return EngineStats(worker.n_windows, worker.n_encoded, worker.n_hits, worker.n_steps)

    def submit(self, window: Window[Result], request: Hashable = None) -> Future[Result]:
        """Never blocks. The future fails with a `ChoralError` when the window cannot be done.

        Windows of different requests are drawn in turn.
        """
        future: Future[Result] = Future()
        with self._closing:
            if self._is_closed:
                raise EngineClosed("this model was closed; load it again to go on")
            self._worker.queue.put((request, Job(window, future)))
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Nobody waits for this one any more: it is not begun, or stops at its next token."""
        if not future.cancel():
            self._worker.unwanted.add(future)

    def close(self) -> None:
        """Stops what is under way and ends the thread. May be called twice."""
        with self._closing:
            self._is_closed = True
        self._end()


def end_thread(worker: Worker, thread: threading.Thread) -> None:
    worker.queue.put(None)
    if thread is not threading.current_thread():
        thread.join()


def torch_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    """An engine on torch, which is imported here and not before."""
    from choral.engine.torch_runner import TorchRunner

    return Engine(TorchRunner(checkpoint, tokenizer, settings))
