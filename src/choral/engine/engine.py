"""The engine: takes windows from any thread, and runs all of them together on the one thread that owns the device.

`submit` never blocks. The queue is bounded: a new caller is refused when it is full, a caller that was admitted never
is. A cancelled window leaves before the next step. The engine's thread ends when the engine is closed or garbage
collected, and when the program ends.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

from choral.audio.constants import WINDOW_FRAMES
from choral.common.sizes import format_size
from choral.config import EngineSettings
from choral.engine.capacity import Capacity
from choral.engine.engine_loop import Cancel, ClearCache, EngineLoop, Shutdown, StepRecord, Submitted
from choral.engine.runner import Runner
from choral.engine.steps import Pending, WindowTask
from choral.engine.warmup import noise, warm_up
from choral.engine.window import Caller, Decoded, DecodeParams, Result, Window
from choral.errors import EngineClosed, EngineError, QueueFull, UsageError, WindowFailed

log = logging.getLogger("choral.engine")
CLOSED = "this model was closed; load it again to go on"


@dataclass(frozen=True)
class EngineStats:
    windows: int  # that have left: finished, failed or cancelled
    failed: int
    cancelled: int
    waiting: int  # have no slots yet
    encoded: int  # windows that went through the encoder
    cache_hits: int  # windows whose audio was already encoded
    cache_bytes: int
    encoder_steps: int
    steps: int  # of the decoder; each adds a token to every window in it
    rows: int  # of all decoder steps; divided by `steps`, the mean batch size
    busy_s: float  # spent in steps; measured by the device's own clock on a GPU


class Engine:
    n_devices = 1

    def __init__(self, runner: Runner, settings: EngineSettings) -> None:
        self.name, self.device, self.compute_type = runner.name, runner.device, runner.compute_type
        self.capacity, self.settings = runner.capacity, settings
        if settings.cache_bytes >= 0:
            self.capacity = replace(runner.capacity, cache_bytes=settings.cache_bytes)
        self.windows_per_step = max(1, settings.encoder_budget // WINDOW_FRAMES)
        self._loop = EngineLoop(runner, self.capacity, self.windows_per_step)
        if settings.warm_up if settings.warm_up is not None else runner.device != "cpu":
            warm_up(self._loop)
        log.info(describe(runner, self.capacity, settings, self.windows_per_step))
        self._lock = threading.Lock()
        self._is_closed = False
        self._callers: weakref.WeakSet[Caller] = weakref.WeakSet()  # that were admitted
        self._cancelled: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._tasks: dict[Future[Any], WindowTask] = {}  # in the engine
        thread = threading.Thread(target=self._loop.run, name="choral-engine", daemon=True)
        thread.start()
        # Also at exit: an interpreter that shuts down while a thread is inside torch aborts.
        self._end = weakref.finalize(self, end_thread, self._loop, thread)

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        """Queue a window; its future fails with a `ChoralError` if the window cannot be done.

        A window without a caller counts as a caller of its own.
        """
        task = WindowTask(window, caller or Caller(), Pending())
        require_slots(task.n_slots, self.capacity)
        with self._lock:
            if not self.is_working:
                raise EngineClosed(CLOSED)
            if task.caller in self._cancelled:
                raise CancelledError
            admit(task.caller, self._callers, self._n_waiting, self.settings.queue_limit)
            self._tasks[task.future] = task
            task.future.add_done_callback(self._tasks.pop)
            if not self._loop.put(Submitted(task)):
                del self._tasks[task.future]
                raise EngineClosed(CLOSED)
        return task.future

    @property
    def _n_waiting(self) -> int:
        return self._loop.scheduler.n_waiting + self._loop.queue.qsize()

    @property
    def is_working(self) -> bool:
        """Whether it takes windows."""
        return not (self._is_closed or self._loop.is_over)

    @property
    def failure(self) -> str | None:
        """Why no request can succeed: the engine is closed, or its device fails at every window."""
        return self._loop.failures.reason if self.is_working else CLOSED

    @property
    def failed_devices(self) -> dict[str, str]:
        """Why each device fails that does."""
        failure = self.failure
        return {} if failure is None else {self.device: failure}

    def self_test(self) -> None:
        """Decode noise; this ends `failure`, or sets it and raises an `EngineError`."""
        error = self.start_self_test().exception()
        if error is None:
            return
        self._loop.failures.record_self_test(error)
        if isinstance(error, EngineError):
            raise error
        raise WindowFailed(f"the self-test failed: {error}") from error

    def start_self_test(self) -> Pending[Decoded]:
        """Decode two tokens of noise: if that succeeds, `failure` ends."""
        # New noise each time, which is encoded, and two tokens: the first may come from the prefill.
        return self.submit(Window(noise(seed=None), DecodeParams(language="en", max_tokens=2)))

    @property
    def n_in_flight(self) -> int:
        return len(self._tasks)

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a window: it is not started, or leaves before the next step."""
        task = self._tasks.get(future)
        future.cancel()
        if task is not None:
            self._loop.put(Cancel(task))

    def cancel_all(self, caller: Caller) -> None:
        """Cancel all windows of a caller, and refuse those it still submits."""
        with self._lock:
            self._cancelled.add(caller)
            futures = [task.future for task in list(self._tasks.values()) if task.caller is caller]
        for future in futures:
            self.cancel(future)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new windows and wait for those submitted; False when the time ran out first."""
        with self._lock:
            self._is_closed = True
            pending = list(self._tasks)
        return not wait(pending, timeout_s).not_done

    def close(self) -> None:
        """Fail all windows and end the thread; a second call has no effect."""
        with self._lock:
            self._is_closed = True
        self._end()

    def observe(self, observer: Callable[[StepRecord], None] | None) -> None:
        """Call `observer` after every step, on the engine's thread: for traces and measurements."""
        self._loop.observer = observer

    def clear_cache(self) -> None:
        """Drop all encoder results that no window needs."""
        self._loop.put(ClearCache())

    @property
    def stats(self) -> EngineStats:
        scheduler = self._loop.scheduler
        return EngineStats(
            **asdict(scheduler.counts),
            waiting=self._n_waiting,
            cache_bytes=self._loop.cache.n_bytes,
            busy_s=scheduler.costs.busy_s,
        )


def require_slots(n_slots: int, capacity: Capacity) -> None:
    if n_slots > capacity.n_slots:
        raise UsageError(
            f"{n_slots} beams or samples were requested, but this engine has "
            f"{capacity.n_slots} slots: lower --beam-size or --best-of"
        )


def admit(caller: Caller, admitted: weakref.WeakSet[Caller], n_waiting: int, limit: int) -> None:
    """Refuse a new caller when the queue is full; a caller that was admitted is never refused."""
    if caller not in admitted and n_waiting >= limit:
        raise QueueFull(f"{n_waiting} windows of 30 s are waiting already: try again in a while")
    admitted.add(caller)


def describe(runner: Runner, capacity: Capacity, settings: EngineSettings, windows_per_step: int) -> str:
    return (
        f"{runner.name} on {runner.device} in {runner.compute_type}: encoder budget {settings.encoder_budget:,} "
        f"frames, at most {windows_per_step} windows per step; {capacity.n_slots} slots of "
        f"{format_size(capacity.slot_bytes)}; encoder cache {format_size(capacity.cache_bytes)}"
    )


def end_thread(loop: EngineLoop, thread: threading.Thread) -> None:
    loop.put(Shutdown())
    if thread is not threading.current_thread():
        thread.join()
