"""The engine: takes windows from any thread, runs them on the one thread that owns the device, gives futures.

Encoder results are kept by content for as long as there is room, so that a retry at another temperature, language
detection, or word alignment on the same audio never encodes it again. A window that is no longer wanted stops at its
next token. The thread ends with the engine: when it is closed, when it is forgotten, and when the program ends.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from choral.config import EngineSettings
from choral.engine.window import Align, Decode, DetectLanguage, Result, Window, WindowAudio
from choral.errors import ChoralError, EngineClosed, WindowFailed
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from choral.engine.torch_runner import TorchRunner

CACHED_WINDOWS = 32


@dataclass(frozen=True)
class EngineStats:
    windows: int  # finished, failed ones included
    encoded: int  # went through the encoder
    cache_hits: int  # found their audio encoded already


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
        return EngineStats(worker.n_windows, worker.n_encoded, worker.n_hits)

    def submit(self, window: Window[Result]) -> Future[Result]:
        """Never blocks. The future fails with a `ChoralError` when the window cannot be done."""
        future: Future[Result] = Future()
        with self._closing:
            if self._is_closed:
                raise EngineClosed("this model was closed; load it again to go on")
            self._worker.queue.put((window, future))
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


class Worker:
    """What happens on the engine's thread. It knows nothing of the engine, so that a forgotten engine can go."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.queue: SimpleQueue[tuple[Window[Any], Future[Any]] | None] = SimpleQueue()
        self.unwanted: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self.is_ending = False
        self.encoded: OrderedDict[bytes, Tensor] = OrderedDict()
        self.n_windows = self.n_encoded = self.n_hits = 0

    def run(self) -> None:
        while (item := self.queue.get()) is not None:
            window, future = item
            if future.set_running_or_notify_cancel():
                self.finish(window, future)
                self.n_windows += 1
        self.encoded.clear()
        del self.runner  # and its weights

    def finish(self, window: Window[Any], future: Future[Any]) -> None:
        try:
            result = self.do(window, future)
        except (ChoralError, CancelledError) as error:
            future.set_exception(error)
        except RuntimeError as error:  # torch's errors: out of memory, a lost device
            failure = WindowFailed(f"the device failed on this window: {error}")
            failure.__cause__ = error
            future.set_exception(failure)
        except BaseException as error:  # a bug: the caller must see it, and the thread must live on
            future.set_exception(error)
        else:
            future.set_result(result)

    def do(self, window: Window[Any], future: Future[Any]) -> object:
        def require_wanted() -> None:
            if self.is_ending:
                raise EngineClosed("the model was closed before this was done")
            if future in self.unwanted:
                raise CancelledError

        require_wanted()
        features = self.features(window.audio)
        match window.work:
            case Decode():
                return self.runner.decode(features, window.work, window.audio, require_wanted)
            case Align():
                return self.runner.align(features, window.work)
            case DetectLanguage():
                return self.runner.detect_language(features)
            case other:
                raise TypeError(f"the engine does not know the work {other!r}")

    def features(self, audio: WindowAudio) -> Tensor:
        if audio.key in self.encoded:
            self.encoded.move_to_end(audio.key)
            self.n_hits += 1
            return self.encoded[audio.key]
        features = self.runner.encode(audio.log_mel(self.runner.dims.n_mels)[None])
        self.n_encoded += 1
        self.encoded[audio.key] = features
        if len(self.encoded) > CACHED_WINDOWS:
            self.encoded.popitem(last=False)
        return features


def end_thread(worker: Worker, thread: threading.Thread) -> None:
    worker.is_ending = True
    worker.queue.put(None)
    if thread is not threading.current_thread():
        thread.join()


def torch_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    """An engine on torch, which is imported here and not before."""
    from choral.engine.torch_runner import TorchRunner

    return Engine(TorchRunner(checkpoint, tokenizer, settings))
