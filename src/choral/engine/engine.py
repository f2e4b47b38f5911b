"""The engine: takes windows from any thread, and works on all of them together on the one thread that owns the device.

Nothing waits in `submit`. The queue is bounded: a new caller is refused when it is full, one that was taken on is
never. A window that is no longer wanted leaves before the next step. The thread ends with the engine: when it is
closed, when it is forgotten, and when the program ends.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from choral.audio.constants import WINDOW_FRAMES
from choral.config import EngineSettings
from choral.engine.engine_loop import Cancel, ClearCache, EngineLoop, Shutdown, StepRecord, Submitted
from choral.engine.runner import Capacity, Runner
from choral.engine.steps import Pending, WindowTask
from choral.engine.trial import try_largest_step
from choral.engine.window import Caller, Result, Window
from choral.errors import EngineClosed, QueueFull, UsageError

log = logging.getLogger("choral.engine")
CLOSED = "this model was closed; load it again to go on"


@dataclass(frozen=True)
class EngineStats:
    windows: int  # that have left: done, failed or given up
    failed: int  # of them
    waiting: int  # have no place yet
    encoded: int  # went through the encoder
    cache_hits: int  # found their audio encoded already
    cache_bytes: int
    encoder_steps: int
    steps: int  # of the decoder, each one token further for all windows in it
    rows: int  # of all decoder steps: by `steps`, how full they were
    busy_s: float  # spent in steps


class Engine:
    def __init__(self, runner: Runner, settings: EngineSettings) -> None:
        self.name, self.device, self.compute_type = runner.name, runner.device, runner.compute_type
        self.capacity, self.settings = runner.capacity, settings
        if settings.cache_bytes >= 0:
            self.capacity = replace(runner.capacity, cache_bytes=settings.cache_bytes)
        self.windows_per_step = max(1, settings.encoder_budget // WINDOW_FRAMES)
        self._worker = EngineLoop(runner, self.capacity, self.windows_per_step)
        if settings.warm_up if settings.warm_up is not None else runner.device != "cpu":
            try_largest_step(self._worker)
        log.info(describe(runner, self.capacity, settings, self.windows_per_step))
        self._lock = threading.Lock()
        self._is_closed = False
        self._callers: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._gone: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._tasks: dict[Future[Any], WindowTask] = {}  # those under way
        thread = threading.Thread(target=self._worker.run, name="choral-engine", daemon=True)
        thread.start()
        # Also at the program's end: an interpreter that goes away under a thread in torch aborts.
        self._end = weakref.finalize(self, end_thread, self._worker, thread)

    def submit(self, window: Window[Result], caller: Caller | None = None, *, watch: bool = False) -> Pending[Result]:
        """The result to come; it fails with a `ChoralError` when the window cannot be done.

        Without a caller the window stands for one of its own. With `watch` the tokens can be seen on their way.
        """
        task = WindowTask(window, caller or Caller(), Pending(is_watched=watch))
        if task.n_slots > self.capacity.n_slots:
            raise UsageError(
                f"{task.n_slots} beams or samples were asked for, and this engine has room for "
                f"{self.capacity.n_slots}: lower --beam-size or --best-of"
            )
        with self._lock:
            if self._is_closed or self._worker.is_over:
                raise EngineClosed(CLOSED)
            if task.caller in self._gone:
                raise CancelledError
            self._admit(task.caller)
            self._tasks[task.future] = task
            task.future.add_done_callback(self._tasks.pop)
            if not self._worker.put(Submitted(task)):
                del self._tasks[task.future]
                raise EngineClosed(CLOSED)
        return task.future

    def _admit(self, caller: Caller) -> None:
        n_waiting = self._worker.scheduler.n_waiting + self._worker.queue.qsize()
        admit(caller, self._callers, n_waiting, self.settings.queue_limit)

    @property
    def is_working(self) -> bool:
        return not (self._is_closed or self._worker.is_over)

    @property
    def n_under_way(self) -> int:
        return len(self._tasks)

    def cancel(self, future: Future[Any]) -> None:
        """Nobody waits for this one any more: it is not begun, or leaves before the next step."""
        task = self._tasks.get(future)
        future.cancel()
        if task is not None:
            self._worker.put(Cancel(task))

    def cancel_all(self, caller: Caller) -> None:
        """Cancels all windows of this caller, and those that it still sends."""
        with self._lock:
            self._gone.add(caller)
            futures = [task.future for task in list(self._tasks.values()) if task.caller is caller]
        for future in futures:
            self.cancel(future)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Takes no more windows and waits for those that were taken; False when time ran out before."""
        with self._lock:
            self._is_closed = True
            pending = list(self._tasks)
        return not wait(pending, timeout_s).not_done

    def close(self) -> None:
        """Stops what is under way and ends the thread. May be called twice."""
        with self._lock:
            self._is_closed = True
        self._end()

    def observe(self, on_step: Callable[[StepRecord], None] | None) -> None:
        """Calls back after every step, on the engine's thread: for traces and measurements."""
        self._worker.on_step = on_step

    def clear_cache(self) -> None:
        """Empties the encoder cache, as far as no window needs it."""
        self._worker.put(ClearCache())

    @property
    def stats(self) -> EngineStats:
        counts, scheduler = self._worker.counts, self._worker.scheduler
        return EngineStats(
            windows=counts.windows,
            failed=counts.failed,
            waiting=scheduler.n_waiting + self._worker.queue.qsize(),
            encoded=counts.encoded,
            cache_hits=scheduler.n_hits,
            cache_bytes=self._worker.cache.n_bytes,
            encoder_steps=counts.encoder_steps,
            steps=counts.decoder_steps,
            rows=counts.decoder_rows,
            busy_s=counts.busy_s,
        )


def admit(caller: Caller, known: weakref.WeakSet[Caller], n_waiting: int, limit: int) -> None:
    """A caller that comes anew is refused when too much waits already; one that was taken on is never."""
    if caller not in known and n_waiting >= limit:
        raise QueueFull(f"{n_waiting} windows of 30 s are waiting already: try again in a while")
    known.add(caller)


def describe(runner: Runner, capacity: Capacity, settings: EngineSettings, windows_per_step: int) -> str:
    """What the engine found at its start, in one line."""
    return (
        f"{runner.name} on {runner.device} in {runner.compute_type}: encoder budget {settings.encoder_budget:,} "
        f"frames, at most {windows_per_step} windows a step; {capacity.n_slots} slots of "
        f"{megabytes(capacity.slot_bytes)}; encoder cache {megabytes(capacity.cache_bytes)}"
    )


def megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"


def end_thread(worker: EngineLoop, thread: threading.Thread) -> None:
    worker.put(Shutdown())
    if thread is not threading.current_thread():
        thread.join()
