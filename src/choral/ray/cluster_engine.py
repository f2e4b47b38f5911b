"""The interface of `Engine` over the engines of a Ray cluster: a window goes to the engine with the fewest in flight.

Windows of the same audio (retries, alignment) go to the engine that has it encoded. A window whose actor dies is
submitted to another one, and the dead one gets no windows until it had time to restart. Windows of one recording go
to all engines, so a long file is shared by them, and its text is assembled where its audio was decoded.
"""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from choral.engine.engine import CLOSED, EngineStats, require_slots
from choral.engine.steps import Pending, n_slots_of
from choral.engine.window import Caller, Result, Window
from choral.errors import EngineClosed
from choral.longform.transcriber import Transcriber
from choral.model.tokenizer import Tokenizer
from choral.ray.engine_host import HostError
from choral.ray.engine_pool import EnginePool
from choral.ray.host_router import SUSPEND_S, HostRouter, RemoteHost
from choral.serving.error_messages import error_from_name

MAX_DOWN_S = 600.0  # a window fails when no engine has worked for so long


def cluster_transcriber(pool: EnginePool) -> Transcriber:
    """A transcriber on the engines of the pool. Needs no checkpoint and no torch."""
    tokenizer = Tokenizer.for_checkpoint(pool.engine.dims, pool.engine.vocabulary)
    return Transcriber(ClusterEngine(pool), tokenizer, pool.engine.dims)


@dataclass(eq=False)
class SentWindow:
    """A window until its result is there."""

    window: Window[Any]
    caller: Caller
    caller_id: bytes
    future: Pending[Any] = field(default_factory=Pending)
    ref: Any = None
    down_since_s: float | None = None  # since when every engine it was sent to has failed


class ClusterEngine:
    """Safe to use from any number of threads."""

    def __init__(self, pool: EnginePool) -> None:
        import ray

        self._ray = ray
        engine = pool.engine
        self.name, self.compute_type = engine.name, engine.compute_type
        self.device, self.n_devices = engine.device, engine.n_devices * len(pool.hosts)
        self.capacity, self.settings = engine.capacity, engine.settings
        self._router = HostRouter(pool.hosts)
        self._lock = threading.Lock()
        self._is_closed = False
        self._caller_ids: weakref.WeakKeyDictionary[Caller, bytes] = weakref.WeakKeyDictionary()
        self._cancelled: weakref.WeakSet[Caller] = weakref.WeakSet()
        self._windows: dict[Future[Any], SentWindow] = {}

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        require_slots(n_slots_of(window.params), self.capacity)
        _ = window.audio.key  # hashes the audio: not under the lock
        caller = caller or Caller("batch")
        with self._lock:
            if self._is_closed:
                raise EngineClosed(CLOSED)
            if caller in self._cancelled:
                raise CancelledError
            sent = SentWindow(window, caller, self._caller_ids.setdefault(caller, uuid4().bytes))
            self._windows[sent.future] = sent
        self._send(sent)
        return sent.future

    def _send(self, sent: SentWindow) -> None:
        if sent.future.cancelled() or self._is_closed:
            self._end(sent, EngineClosed(CLOSED))
            return
        with self._lock:
            host = self._router.send(sent.window.audio.key, time.monotonic())
        sent.ref = host.handle.run.remote(sent.window, sent.caller_id, sent.caller.priority)
        sent.ref.future().add_done_callback(partial(self._receive, sent, host))

    def _receive(self, sent: SentWindow, host: RemoteHost, reply: Future[Any]) -> None:
        """On a thread of Ray's."""
        with self._lock:
            self._router.receive(host)
        error = reply.exception()
        if error is None:
            result = reply.result()
            failed = error_from_name(result.kind, result.text) if isinstance(result, HostError) else None
            if not isinstance(failed, EngineClosed):
                self._end(sent, result if failed is None else failed)
                return
        elif not isinstance(error, self._ray.exceptions.RayError):
            self._end(sent, error)
            return
        elif isinstance(error, self._ray.exceptions.TaskCancelledError):
            self._end(sent, CancelledError())
            return
        self._send_elsewhere(sent, host)

    def _send_elsewhere(self, sent: SentWindow, host: RemoteHost) -> None:
        now_s = time.monotonic()
        with self._lock:
            all_down = self._router.suspend(host, now_s)
        sent.down_since_s = (sent.down_since_s or now_s) if all_down else None
        if sent.down_since_s is not None and now_s > sent.down_since_s + MAX_DOWN_S:
            self._end(sent, EngineClosed(f"no engine of the cluster has worked for {MAX_DOWN_S:g} s: see `ray status`"))
        elif all_down:
            retry = threading.Timer(SUSPEND_S, self._send, (sent,))
            retry.daemon = True
            retry.start()
        else:
            self._send(sent)

    def _end(self, sent: SentWindow, outcome: Any) -> None:
        with self._lock:
            self._windows.pop(sent.future, None)
        if not sent.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            sent.future.set_exception(outcome)
        else:
            sent.future.set_result(outcome)

    @property
    def n_in_flight(self) -> int:
        return len(self._windows)

    def cancel(self, future: Future[Any]) -> None:
        sent = self._windows.get(future)
        future.cancel()
        if sent is not None and sent.ref is not None:
            self._ray.cancel(sent.ref)

    def cancel_all(self, caller: Caller) -> None:
        with self._lock:
            self._cancelled.add(caller)
            futures = [future for future, sent in self._windows.items() if sent.caller is caller]
        for future in futures:
            self.cancel(future)

    def drain(self, timeout_s: float | None = None) -> bool:
        with self._lock:
            self._is_closed = True
            pending = list(self._windows)
        return not wait(pending, timeout_s).not_done

    def close(self) -> None:
        """Cancel what is in flight; the actors stay, for other processes."""
        with self._lock:
            self._is_closed = True
            pending = list(self._windows)
        for future in pending:
            self.cancel(future)

    def clear_cache(self) -> None:
        """Nothing is kept here; the engines evict what is used least."""

    def self_test(self) -> None:
        """Each engine was tested when the pool started."""

    @property
    def is_working(self) -> bool:
        return not self._is_closed

    @property
    def failure(self) -> str | None:
        return CLOSED if self._is_closed else None

    @property
    def failed_devices(self) -> dict[str, str]:
        return {}

    @property
    def stats(self) -> EngineStats:
        """Of this process: only what is in flight is known here."""
        return EngineStats(**(dict.fromkeys(EngineStats.__annotations__, 0) | {"waiting": len(self._windows)}))
