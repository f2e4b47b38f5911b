"""The engine: takes windows from any thread, runs them on the one thread that owns the device, gives futures.

Encoder results are kept by content for as long as there is room, so that a retry at another temperature, language
detection, or word alignment on the same audio never encodes it again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
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
    """`build_runner` runs on the engine's own thread, which alone touches the device."""

    def __init__(self, build_runner: Callable[[], TorchRunner]) -> None:
        self._queue: SimpleQueue[tuple[Window[Any], Future[Any]] | None] = SimpleQueue()
        self._encoded: OrderedDict[bytes, Tensor] = OrderedDict()
        self._n_windows = self._n_encoded = self._n_hits = 0
        self._closing = threading.Lock()
        self._is_closed = False
        ready: Future[TorchRunner] = Future()
        self._thread = threading.Thread(target=self._run, args=(build_runner, ready), name="choral-engine", daemon=True)
        self._thread.start()
        self._runner = ready.result()

    @property
    def device(self) -> str:
        return str(self._runner.device)

    @property
    def compute_type(self) -> str:
        return self._runner.compute_type

    @property
    def stats(self) -> EngineStats:
        return EngineStats(self._n_windows, self._n_encoded, self._n_hits)

    def submit(self, window: Window[Result]) -> Future[Result]:
        """Never blocks. The future fails with a `ChoralError` when the window cannot be done."""
        future: Future[Result] = Future()
        with self._closing:
            if self._is_closed:
                raise EngineClosed("this model was closed; load it again to go on")
            self._queue.put((window, future))
        return future

    def close(self) -> None:
        """Finishes what was submitted, then ends the thread. May be called twice."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self, build_runner: Callable[[], TorchRunner], ready: Future[TorchRunner]) -> None:
        try:
            runner = build_runner()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(runner)
        while (item := self._queue.get()) is not None:
            window, future = item
            if future.set_running_or_notify_cancel():
                self._finish(runner, window, future)
                self._n_windows += 1
        self._encoded.clear()

    def _finish(self, runner: TorchRunner, window: Window[Any], future: Future[Any]) -> None:
        try:
            result = self._do(runner, window)
        except ChoralError as error:
            future.set_exception(error)
        except RuntimeError as error:  # torch's errors: out of memory, a lost device
            failure = WindowFailed(f"the device failed on this window: {error}")
            failure.__cause__ = error
            future.set_exception(failure)
        except BaseException as error:  # a bug: the caller must see it, and the thread must live on
            future.set_exception(error)
        else:
            future.set_result(result)

    def _do(self, runner: TorchRunner, window: Window[Any]) -> object:
        features = self._features(runner, window.audio)
        match window.work:
            case Decode():
                return runner.decode(features, window.work, window.audio)
            case Align():
                return runner.align(features, window.work)
            case DetectLanguage():
                return runner.detect_language(features)
            case other:
                raise TypeError(f"the engine does not know the work {other!r}")

    def _features(self, runner: TorchRunner, audio: WindowAudio) -> Tensor:
        if audio.key in self._encoded:
            self._encoded.move_to_end(audio.key)
            self._n_hits += 1
            return self._encoded[audio.key]
        features = runner.encode(audio.log_mel(runner.dims.n_mels)[None])
        self._n_encoded += 1
        self._encoded[audio.key] = features
        if len(self._encoded) > CACHED_WINDOWS:
            self._encoded.popitem(last=False)
        return features


def torch_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    """An engine on torch, which is imported here and not before."""

    def build() -> TorchRunner:
        from choral.engine.torch_runner import TorchRunner

        return TorchRunner(checkpoint, tokenizer, settings)

    return Engine(build)
