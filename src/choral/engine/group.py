"""Several engines, one per device, behind one `submit`: a window goes to the engine with the fewest in flight.

Windows of the same audio (retries, alignment) go to the engine that has it encoded. A window that an engine could not
do is tried on another one. An engine whose device fails at everything gets windows only if all do, and a self-test now
and then until one passes. The engines do not know each other, and may run in processes of their own.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.engine import Engine, EngineStats, admit
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Pending
from choral.engine.window import Caller, Result, Window
from choral.errors import EngineClosed, EngineError, UsageError, WindowFailed

MAX_KNOWN_AUDIOS = 4096  # whose engine is remembered
RETEST_S = 5.0  # between two self-tests of a failed device
MAX_TRIES = 2  # engines that may fail at a window, or end while they have it: it may be the cause


@dataclass(eq=False)
class RoutedWindow:
    """A window on its way: the future of its caller, the engines it was given to, and the future of the last one."""

    window: Window[Any]
    caller: Caller
    future: Pending[Any] = field(default_factory=Pending)
    tried: list[AnyEngine] = field(default_factory=list)
    pending: Pending[Any] | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """The caller's future ends when the engine has let go of the samples."""
        self.is_cancelled = True
        if self.pending is not None:
            self.tried[-1].cancel(self.pending)


class EngineGroup:
    def __init__(self, engines: Sequence[AnyEngine], queue_limit: int) -> None:
        first = engines[0]
        self.name, self.compute_type = first.name, first.compute_type
        self.capacity, self.settings = first.capacity, replace(first.settings, queue_limit=queue_limit)
        self.device, self.n_devices = ", ".join(engine.device for engine in engines), len(engines)
        self._engines = list(engines)
        self._lock = threading.Lock()
        self._callers: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._routed: weakref.WeakKeyDictionary[Future[Any], RoutedWindow] = weakref.WeakKeyDictionary()
        self._known: OrderedDict[bytes, AnyEngine] = OrderedDict()
        self._retested: set[AnyEngine] = set()
        self._next_retest_s = 0.0

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        routed = RoutedWindow(window, caller or Caller())
        routed.future.add_done_callback(lambda future: routed.cancel() if future.cancelled() else None)
        n_waiting = self._n_waiting
        with self._lock:
            admit(routed.caller, self._callers, n_waiting, self.settings.queue_limit)
            self._routed[routed.future] = routed
        self._retest_failed()
        self._start(routed)
        return routed.future

    def _start(self, routed: RoutedWindow) -> None:
        """Give it to the best engine that it was not given to; raises what `submit` raises there."""
        engine = self._choose(routed)
        routed.tried.append(engine)
        try:
            routed.pending = engine.submit(routed.window, routed.caller)
        except EngineClosed:  # it has ended since it was chosen
            if not self._can_retry(routed):
                raise
            self._start(routed)
            return
        if routed.is_cancelled or routed.future.cancelled():
            routed.cancel()
        routed.pending.add_done_callback(lambda pending: self._finish(routed, pending))

    def _choose(self, routed: RoutedWindow) -> AnyEngine:
        key = routed.window.audio.key  # hashes the audio: not under the lock
        with self._lock:
            engine = self._known.pop(key, None)
            if engine is None or engine in routed.tried or engine.failure is not None:
                untried = [engine for engine in self._engines if engine not in routed.tried]
                # A failed device is done with its windows at once: it would always have the fewest.
                engine = min(untried, key=lambda engine: (engine.failure is not None, engine.n_in_flight))
            self._known[key] = engine
            if len(self._known) > MAX_KNOWN_AUDIOS:
                self._known.popitem(last=False)
        return engine

    def _can_retry(self, routed: RoutedWindow) -> bool:
        if routed.is_cancelled or routed.future.cancelled() or len(routed.tried) == MAX_TRIES:
            return False
        return any(engine.failure is None for engine in self._engines if engine not in routed.tried)

    def _finish(self, routed: RoutedWindow, pending: Future[Any]) -> None:
        """Pass the result on, or try another engine if this one failed."""
        error = CancelledError() if pending.cancelled() else pending.exception()
        if isinstance(error, EngineClosed | WindowFailed) and self._can_retry(routed):
            try:
                self._start(routed)
            except (EngineError, CancelledError) as second:
                error = second
            else:
                return
        if isinstance(error, CancelledError):
            routed.future.cancel()
        if not routed.future.set_running_or_notify_cancel():
            return
        if error is None:
            routed.future.set_result(pending.result())
        else:
            routed.future.set_exception(error)

    def _retest_failed(self) -> None:
        """Only a self-test can show that a failed device works again, as it gets no other windows."""
        with self._lock:
            failed = {engine for engine in self._engines if engine.failure is not None} - self._retested
            if not failed or time.monotonic() < self._next_retest_s:
                return
            self._next_retest_s = time.monotonic() + RETEST_S
            self._retested |= failed
        for engine in failed:
            threading.Thread(target=self._retest, args=(engine,), name="choral-self-test", daemon=True).start()

    def _retest(self, engine: AnyEngine) -> None:
        with suppress(EngineError):  # `failure` has it
            engine.self_test()
        with self._lock:
            self._retested.remove(engine)

    def cancel(self, future: Future[Any]) -> None:
        with self._lock:
            routed = self._routed.get(future)
        if routed is not None:
            routed.cancel()

    def cancel_all(self, caller: Caller) -> None:
        for engine in self._engines:
            engine.cancel_all(caller)

    def drain(self, timeout_s: float | None = None) -> bool:
        started_s = time.monotonic()
        drained = []
        for engine in self._engines:  # all of them, even after a timeout: none accepts windows afterwards
            left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started_s))
            drained.append(engine.drain(left_s))
        return all(drained)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._engines)) as pool:  # a process may take seconds to free its device
            list(pool.map(lambda engine: engine.close(), self._engines))

    def observe(self, observer: Callable[[StepRecord], None] | None) -> None:
        """The engines must be in this process: see `as_local`."""
        for engine in self._engines:
            assert isinstance(engine, Engine)
            engine.observe(observer)

    def clear_cache(self) -> None:
        for engine in self._engines:
            engine.clear_cache()

    @property
    def is_working(self) -> bool:
        """Whether it takes windows."""
        return any(engine.is_working for engine in self._engines)

    @property
    def failure(self) -> str | None:
        """That of the first device, if all fail: one that works gets all windows meanwhile."""
        failures = [engine.failure for engine in self._engines]
        return None if None in failures else failures[0]

    @property
    def failed_devices(self) -> dict[str, str]:
        return {device: reason for engine in self._engines for device, reason in engine.failed_devices.items()}

    def self_test(self) -> None:
        """On every device; raises the first error if all fail."""
        errors = []
        for engine in self._engines:
            try:
                engine.self_test()
            except EngineError as error:
                errors.append(error)
        if len(errors) == len(self._engines):
            raise errors[0]

    @property
    def n_in_flight(self) -> int:
        return sum(engine.n_in_flight for engine in self._engines)

    @property
    def _n_waiting(self) -> int:
        """Windows without slots; at least, if some have several."""
        return sum(max(0, engine.n_in_flight - engine.capacity.n_slots) for engine in self._engines)

    @property
    def stats(self) -> EngineStats:
        """The sum over all engines."""
        stats = [engine.stats for engine in self._engines]
        return EngineStats(**{f.name: sum(getattr(each, f.name) for each in stats) for f in fields(EngineStats)})


LocalEngine = Engine | EngineGroup


def as_local(engine: AnyEngine) -> LocalEngine:
    """For observers of steps, which an engine in another process does not have."""
    engines = engine._engines if isinstance(engine, EngineGroup) else [engine]
    if not all(isinstance(each, Engine) for each in engines):
        raise UsageError("the steps of engines in other processes cannot be followed: use one device (--device)")
    assert isinstance(engine, LocalEngine)
    return engine
