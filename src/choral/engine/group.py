"""Several engines, one per device, behind one `submit`: a window goes to the engine with the fewest in flight.

Windows of the same audio (retries, alignment) go to the engine that has it encoded. An engine whose device fails at
everything gets windows only if all do, and a self-test now and then until one passes. The engines do not know each
other.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.engine import Engine, EngineStats, admit
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Pending
from choral.engine.window import Caller, Result, Window
from choral.errors import EngineClosed, EngineError, QueueFull

MAX_KNOWN_AUDIOS = 4096  # whose engine is remembered
RETEST_S = 5.0  # between two self-tests of a failed device


class EngineGroup:
    def __init__(self, engines: Sequence[Engine], queue_limit: int) -> None:
        first = engines[0]
        self.name, self.compute_type = first.name, first.compute_type
        self.capacity, self.settings = first.capacity, replace(first.settings, queue_limit=queue_limit)
        self.device, self.n_devices = ", ".join(engine.device for engine in engines), len(engines)
        self._engines = list(engines)
        self._lock = threading.Lock()
        self._callers: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._owners: weakref.WeakKeyDictionary[Future[Any], Engine] = weakref.WeakKeyDictionary()
        self._known: OrderedDict[bytes, Engine] = OrderedDict()
        self._next_retest_s = 0.0

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        caller = caller or Caller()
        key = window.audio.key  # hashes the audio: not under the lock
        with self._lock:
            admit(caller, self._callers, self.stats.waiting, self.settings.queue_limit)
            self._retest_failed()
            engine = self._known.pop(key, None)
            if engine is None or engine.failure is not None:
                # A failed device is done with its windows at once: it would always have the fewest.
                engine = min(self._engines, key=lambda engine: (engine.failure is not None, engine.n_in_flight))
            self._known[key] = engine
            if len(self._known) > MAX_KNOWN_AUDIOS:
                self._known.popitem(last=False)
            pending = engine.submit(window, caller)
            self._owners[pending] = engine
        return pending

    def _retest_failed(self) -> None:
        """Only a self-test can show that a failed device works again, as it gets no other windows."""
        failed = [engine for engine in self._engines if engine.failure is not None]
        if not failed or time.monotonic() < self._next_retest_s:
            return
        self._next_retest_s = time.monotonic() + RETEST_S
        for engine in failed:
            with suppress(EngineClosed, QueueFull):
                engine.start_self_test()

    def cancel(self, future: Future[Any]) -> None:
        if (engine := self._owners.get(future)) is not None:
            engine.cancel(future)

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
        for engine in self._engines:
            engine.close()

    def observe(self, observer: Callable[[StepRecord], None] | None) -> None:
        for engine in self._engines:
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
    def stats(self) -> EngineStats:
        """The sum over all engines."""
        stats = [engine.stats for engine in self._engines]
        return EngineStats(**{f.name: sum(getattr(each, f.name) for each in stats) for f in fields(EngineStats)})


LocalEngine = Engine | EngineGroup


def as_local(engine: AnyEngine) -> LocalEngine:
    """For observers of steps, which an engine in another process does not have."""
    assert isinstance(engine, LocalEngine)
    return engine
