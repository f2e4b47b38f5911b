"""The engine's thread: schedule → run → update, until shutdown. Only this thread touches the device.

The loop holds no reference to its `Engine`, so that an unused engine can be garbage collected. A window that fails or
is cancelled leaves alone: a batch that fails is retried window by window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from traceback import clear_frames

from choral.common.malloc import trim_malloc
from choral.engine.capacity import Capacity
from choral.engine.decoding import device_failed
from choral.engine.encoder_cache import EncoderCache
from choral.engine.failure_streak import FailureStreak
from choral.engine.runner import PrefillInput, Runner
from choral.engine.scheduler import Scheduler
from choral.engine.slots import Slots
from choral.engine.steps import Align, Decode, Encode, Failed, Finished, InProgress, Outcome, Prefill, Step, WindowTask
from choral.engine.window import DecodeParams
from choral.errors import ChoralError, EngineClosed

CHECK_INTERVAL_S = 1.0  # shortest, between two integrity checks: each goes through the whole cache


@dataclass(frozen=True)
class StepRecord:
    """A step that ran, for observers: traces and measurements."""

    step: Step
    outcomes: Sequence[Outcome]
    started_s: float  # by time.perf_counter
    run_s: float  # wall time; the cost model's estimate where the runner only launches the work
    scheduling_s: float
    n_waiting: int


@dataclass(frozen=True)
class Submitted:
    task: WindowTask


@dataclass(frozen=True)
class Cancel:
    task: WindowTask


@dataclass(frozen=True)
class ClearCache:
    pass


@dataclass(frozen=True)
class Shutdown:
    pass


Message = Submitted | Cancel | ClearCache | Shutdown


class EngineLoop:
    def __init__(self, runner: Runner, capacity: Capacity, max_encode_batch: int) -> None:
        self.runner = runner
        self.cache: EncoderCache[object] = EncoderCache(capacity.cache_bytes)
        slots = Slots(capacity.n_slots)
        self.scheduler = Scheduler(
            slots,
            self.cache,
            max_encode_batch,
            capacity.n_lanes,
            runner.costs,
            is_micro_batch=capacity.is_micro_batch,
        )
        self.queue: SimpleQueue[Message] = SimpleQueue()
        self.observer: Callable[[StepRecord], None] | None = None
        self.failures = FailureStreak(runner.device)
        self.is_over = False
        self._next_check_s = 0.0
        self._ending = threading.Lock()  # every message put before the end is seen by `end`

    def put(self, message: Message) -> bool:
        """From any thread. False: the loop has ended and will not read the message."""
        with self._ending:
            if not self.is_over:
                self.queue.put(message)
            return not self.is_over

    def run(self) -> None:
        try:
            has_work = False
            while self.receive(is_idle=not has_work):
                has_work = self.step()
                if not has_work:
                    self.check_integrity()
        finally:  # a bug in the loop ends the engine, and leaves no caller waiting
            self.end()

    def step(self) -> bool:
        """One turn of the loop. False: there was nothing to do."""
        scheduling_started_s = time.perf_counter()
        step = self.scheduler.schedule()
        if step is None:
            return False
        if tasks := tuple(task for task in step.tasks if self.is_live(task)):
            step = replace(step, tasks=tasks)
            started_s = time.perf_counter()
            outcomes, run_s = self.execute(step)
            self.failures.record(step, outcomes)
            if self.observer is not None:
                scheduling_s = started_s - scheduling_started_s
                self.observer(StepRecord(step, outcomes, started_s, run_s, scheduling_s, self.scheduler.n_waiting))
            for task, outcome in self.scheduler.update(step, outcomes, run_s):
                self.resolve(task, outcome)
        return True

    def receive(self, *, is_idle: bool) -> bool:
        """Handle all messages; block for the first only when idle. False: shut down."""
        try:
            while True:
                match self.queue.get(block=is_idle):
                    case Submitted(task):
                        self.scheduler.add(task)
                    case Cancel(task) if task in self.scheduler.tasks:
                        if self.is_live(task):
                            self.fail(task, CancelledError())
                    case ClearCache():
                        self.cache.clear()
                    case Shutdown():
                        return False
                is_idle = False
        except Empty:
            return True

    def end(self) -> None:
        with self._ending:
            self.is_over = True
        while not self.queue.empty():
            match self.queue.get():
                case Submitted(task):
                    self.scheduler.add(task)
        for task in list(self.scheduler.tasks):
            if self.is_live(task):
                self.fail(task, EngineClosed("the model was closed before this was done"))
        self.cache.clear()
        del self.runner  # and its weights
        trim_malloc()

    def check_integrity(self) -> None:
        now_s = time.perf_counter()
        if now_s >= self._next_check_s:
            self.scheduler.check_integrity()
            self._next_check_s = now_s + CHECK_INTERVAL_S

    def execute(self, step: Step) -> tuple[Sequence[Outcome], float]:
        """The outcome of each window, and the seconds to charge for them."""
        started_s = time.perf_counter()
        outcomes = self.attempt(step.tasks, self.action(step))
        wall_s = time.perf_counter() - started_s
        if self.runner.costs is None:
            return outcomes, wall_s
        expected_s = self.scheduler.expected_s(step)
        return outcomes, wall_s if expected_s is None else expected_s

    def attempt(
        self, tasks: Sequence[WindowTask], action: Callable[[Sequence[WindowTask]], Sequence[Outcome]]
    ) -> Sequence[Outcome]:
        """Run windows as one batch; if that fails, one by one, so that only the faulty one fails."""
        try:
            return action(tasks)
        except BaseException as error:  # bugs too: the caller must see them, and the thread must survive
            clear_frames(error.__traceback__)  # or its tensors would take the memory that the retry needs
            if len(tasks) == 1:
                return [Failed(as_failure(error))]
        return [outcome for task in tasks for outcome in self.attempt([task], action)]

    def action(self, step: Step) -> Callable[[Sequence[WindowTask]], Sequence[Outcome]]:
        match step:
            case Encode():
                return self.encode
            case Prefill():
                return lambda tasks: self.runner.prefill([self.prefill_input(task) for task in tasks])
            case Decode():
                return lambda tasks: self.runner.decode([task.slots for task in tasks])
            case Align():
                return lambda tasks: self.runner.align([(self.cache.get(t.key), t.window.params) for t in tasks])

    def encode(self, tasks: Sequence[WindowTask]) -> Sequence[Outcome]:
        missing = {task.key: task.window.audio for task in tasks if task.key not in self.cache}
        features = self.runner.encode(list(missing.values())) if missing else ()
        for key, window_features in zip(missing, features, strict=True):
            self.cache.put(key, window_features, self.runner.capacity.features_bytes)
        return [InProgress()] * len(tasks)

    def prefill_input(self, task: WindowTask) -> PrefillInput:
        params = task.window.params
        assert isinstance(params, DecodeParams)
        return PrefillInput(task.slots, self.cache.get(task.key), params, task.key)

    def is_live(self, task: WindowTask) -> bool:
        """False: its future was cancelled, and the window has left."""
        if task.future.running() or task.future.set_running_or_notify_cancel():
            return True
        self.scheduler.remove(task, Failed(CancelledError()))
        self.runner.release(task.slots)
        return False

    def fail(self, task: WindowTask, error: BaseException) -> None:
        self.scheduler.remove(task, Failed(error))
        self.resolve(task, Failed(error))

    def resolve(self, task: WindowTask, outcome: Finished | Failed) -> None:
        """Free the runner's slots of a window that the scheduler has removed, and resolve its future."""
        self.runner.release(task.slots)
        match outcome:
            case Finished(result):
                task.future.set_result(result)
            case Failed(error):
                task.future.set_exception(error)


def as_failure(error: BaseException) -> BaseException:
    """Wrap errors of torch and CTranslate2; our own errors, and bugs, stay as they are."""
    is_device_error = isinstance(error, RuntimeError) and not isinstance(error, ChoralError)
    return device_failed(error) if is_device_error else error
