"""The engine's thread: schedule → run → tell, until it is over. It is the only one that touches the device.

It knows nothing of the engine that started it, so that a forgotten engine can go. A window that fails, or is no longer
wanted, leaves alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from choral.engine.decoding import device_failed
from choral.engine.encoder_cache import EncoderCache
from choral.engine.runner import Capacity, PrefillInput, Runner
from choral.engine.scheduler import Scheduler
from choral.engine.slots import Slots
from choral.engine.steps import Align, Decode, Encode, Failed, Finished, InProgress, Outcome, Prefill, Step, WindowTask
from choral.engine.window import Decoded, DecodeParams
from choral.errors import ChoralError, EngineClosed

CHECK_EVERY_S = 1.0  # at least, between two looks whether all is accounted for: each goes through the whole cache


@dataclass(frozen=True)
class StepRecord:
    """One step as it was made: what traces and measurements are drawn from."""

    step: Step
    started_s: float  # by time.perf_counter
    run_s: float
    scheduling_s: float  # what it took to decide on it
    n_waiting: int


@dataclass
class Counts:
    windows: int = 0
    failed: int = 0
    encoded: int = 0
    encoder_steps: int = 0
    decoder_steps: int = 0
    decoder_rows: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True)
class Submitted:
    task: WindowTask


@dataclass(frozen=True)
class Cancel:
    task: WindowTask


@dataclass(frozen=True)
class ClearCache:
    """Empty the encoder cache, as far as no window needs it."""


@dataclass(frozen=True)
class Shutdown:
    pass


class EngineLoop:
    def __init__(self, runner: Runner, capacity: Capacity, most_encoded_together: int) -> None:
        self.runner = runner
        self.cache: EncoderCache[object] = EncoderCache(capacity.cache_bytes)
        self.scheduler = Scheduler(Slots(capacity.n_slots), self.cache, most_encoded_together, capacity.n_lanes)
        self.queue: SimpleQueue[Submitted | Cancel | ClearCache | Shutdown] = SimpleQueue()
        self.counts = Counts()
        self.on_step: Callable[[StepRecord], None] | None = None
        self.is_over = False
        self._next_check_s = 0.0
        self._ending = threading.Lock()  # what is put into the queue before the end is seen by it

    def put(self, message: Submitted | Cancel | ClearCache | Shutdown) -> bool:
        """From any thread. False: it is over, and nobody will see it."""
        with self._ending:
            if not self.is_over:
                self.queue.put(message)
            return not self.is_over

    def run(self) -> None:
        try:
            step: Step | None = None
            while self.receive(is_idle=step is None):
                asked_s = time.perf_counter()
                step = self.scheduler.schedule()
                if step is not None:
                    self.perform(step, asked_s)
                elif asked_s >= self._next_check_s:
                    self.scheduler.check_integrity()
                    self._next_check_s = asked_s + CHECK_EVERY_S
        finally:  # a bug of ours ends the engine, but leaves nobody waiting
            self.end()

    def end(self) -> None:
        with self._ending:
            self.is_over = True
        while not self.queue.empty():
            match self.queue.get():
                case Submitted(task):
                    self.scheduler.add(task)
        for task in list(self.scheduler.tasks):
            if self.claim(task):
                self.leave(task, EngineClosed("the model was closed before this was done"))
        self.cache.clear()
        del self.runner  # and its weights

    def receive(self, *, is_idle: bool) -> bool:
        """Takes in what was submitted or given up; waits only when there is nothing to do. False: it is over."""
        try:
            while True:
                match self.queue.get(block=is_idle):
                    case Submitted(task):
                        self.scheduler.add(task)
                    case Cancel(task) if task in self.scheduler.tasks:
                        if self.claim(task):
                            self.leave(task, CancelledError())
                    case ClearCache():
                        self.cache.clear()
                    case Shutdown():
                        return False
                is_idle = False
        except Empty:
            return True

    def perform(self, step: Step, asked_s: float) -> None:
        step = replace(step, tasks=tuple(task for task in step.tasks if self.claim(task)))
        if not step.tasks:
            return
        started_s = time.perf_counter()
        outcomes = self.attempt(step.tasks, self.action(step))
        run_s = self.runner.took_s or time.perf_counter() - started_s
        self.scheduler.charge(step, run_s)
        self.count(step, run_s)
        if self.on_step is not None:
            self.on_step(StepRecord(step, started_s, run_s, started_s - asked_s, self.scheduler.n_waiting))
        for task, outcome in zip(step.tasks, outcomes, strict=True):
            self.settle(step, task, outcome)

    def action(self, step: Step) -> Callable[[Sequence[WindowTask]], Sequence[Outcome]]:
        match step:
            case Encode():
                return self.encode
            case Prefill():
                return lambda tasks: self.runner.prefill([self.start_of(task) for task in tasks])
            case Decode():
                return lambda tasks: self.runner.decode([task.slots for task in tasks])
            case Align():
                return lambda tasks: self.runner.align(
                    [(self.cache.get(task.key), task.window.params) for task in tasks]
                )

    def encode(self, tasks: Sequence[WindowTask]) -> Sequence[Outcome]:
        missing = {task.key: task.window.audio for task in tasks if task.key not in self.cache}
        features = self.runner.encode(list(missing.values())) if missing else ()
        for key, own in zip(missing, features, strict=True):
            self.cache.put(key, own, self.runner.capacity.features_bytes)
        self.counts.encoded += len(missing)
        return [InProgress(None)] * len(tasks)

    def start_of(self, task: WindowTask) -> PrefillInput:
        params = task.window.params
        assert isinstance(params, DecodeParams)
        return PrefillInput(task.slots, self.cache.get(task.key), params, task.key, task.future.is_watched)

    def attempt(
        self, tasks: Sequence[WindowTask], action: Callable[[Sequence[WindowTask]], Sequence[Outcome]]
    ) -> Sequence[Outcome]:
        """Runs some windows together; if that fails, each alone, so that only the one at fault fails."""
        try:
            return action(tasks)
        except BaseException as error:  # a bug's too: the caller must see it, and the thread must live on
            if len(tasks) == 1:
                return [Failed(as_failure(error))]
            return [outcome for task in tasks for outcome in self.attempt([task], action)]

    def settle(self, step: Step, task: WindowTask, outcome: Outcome) -> None:
        match outcome:
            case InProgress(tokens):
                if isinstance(step, Prefill):
                    self.scheduler.begun(task)
                if tokens is not None:
                    task.future.show(tokens)
            case Finished(result):
                self.depart(task)
                if isinstance(result, Decoded):
                    task.future.show(result.tokens)
                task.future.set_result(result)
            case Failed(error):
                self.leave(task, error)

    def claim(self, task: WindowTask) -> bool:
        """Whether somebody still waits for it; if not, it is gone."""
        if task.future.running() or task.future.set_running_or_notify_cancel():
            return True
        self.depart(task)
        return False

    def leave(self, task: WindowTask, error: BaseException) -> None:
        self.depart(task)
        self.counts.failed += 1
        task.future.set_exception(error)

    def depart(self, task: WindowTask) -> None:
        self.scheduler.finish(task)
        self.runner.release(task.slots)
        self.counts.windows += 1

    def count(self, step: Step, run_s: float) -> None:
        self.counts.busy_s += run_s
        match step:
            case Encode():
                self.counts.encoder_steps += 1
            case Decode(tasks):
                self.counts.decoder_steps += 1
                self.counts.decoder_rows += sum(task.n_slots for task in tasks)


def as_failure(error: BaseException) -> BaseException:
    """A device's errors become ours; ours, and bugs, stay as they are."""
    is_the_device_s = isinstance(error, RuntimeError) and not isinstance(error, ChoralError)
    return device_failed(error) if is_the_device_s else error
