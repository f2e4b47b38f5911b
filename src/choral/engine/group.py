"""Several engines, one for each device, behind one `submit`: a window goes where the least is under way.

Windows of the same audio (retries, alignment) go where it is encoded already. Each engine has its own thread, and
knows nothing of the others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any

from choral.engine.engine import Engine, EngineStats, admit
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Pending
from choral.engine.window import Caller, Result, Window

REMEMBERED = 4096  # audios whose engine is known


class EngineGroup:
    def __init__(self, engines: Sequence[Engine], queue_limit: int) -> None:
        first = engines[0]
        self.name, self.compute_type = first.name, first.compute_type
        self.capacity, self.settings = first.capacity, replace(first.settings, queue_limit=queue_limit)
        self.device = ", ".join(engine.device for engine in engines)
        self._engines = list(engines)
        self._lock = threading.Lock()
        self._callers: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._owners: weakref.WeakKeyDictionary[Future[Any], Engine] = weakref.WeakKeyDictionary()
        self._known: OrderedDict[bytes, Engine] = OrderedDict()

    def submit(self, window: Window[Result], caller: Caller | None = None, *, watch: bool = False) -> Pending[Result]:
        caller = caller or Caller()
        key = window.audio.key  # takes a moment: not under the lock
        with self._lock:
            admit(caller, self._callers, self.stats.waiting, self.settings.queue_limit)
            engine = self._known.pop(key, None) or min(self._engines, key=lambda each: each.n_under_way)
            self._known[key] = engine
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            pending = engine.submit(window, caller, watch=watch)
            self._owners[pending] = engine
        return pending

    def cancel(self, future: Future[Any]) -> None:
        if (engine := self._owners.get(future)) is not None:
            engine.cancel(future)

    def cancel_all(self, caller: Caller) -> None:
        for engine in self._engines:
            engine.cancel_all(caller)

    def drain(self, timeout_s: float | None = None) -> bool:
        started_s = time.monotonic()
        done = []
        for engine in self._engines:  # all of them, whatever the first ones say: none takes more after this
            left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started_s))
            done.append(engine.drain(left_s))
        return all(done)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def observe(self, on_step: Callable[[StepRecord], None] | None) -> None:
        for engine in self._engines:
            engine.observe(on_step)

    def clear_cache(self) -> None:
        for engine in self._engines:
            engine.clear_cache()

    @property
    def is_working(self) -> bool:
        return all(engine.is_working for engine in self._engines)

    @property
    def stats(self) -> EngineStats:
        """Of all together."""
        each = [engine.stats for engine in self._engines]
        return EngineStats(**{f.name: sum(getattr(stats, f.name) for stats in each) for f in fields(EngineStats)})


AnyEngine = Engine | EngineGroup
