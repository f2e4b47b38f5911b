"""Random sequences of events, stateful, on a fake runner: no window is lost, no caller starves, all windows end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import choral.engine.engine_loop
from choral.engine.fair_share import WEIGHTS
from choral.engine.scheduler import MAX_PREFILL_STALL_S
from choral.engine.steps import Decode, Encode, Step, WindowTask
from choral.engine.window import Caller
from fake_runner import Clock, FakeRunner, Seconds, audio
from stepped_loop import SteppedLoop

N_CALLERS = 6
MAX_TOKENS = 5


def max_wait_s(runner: FakeRunner, callers: Sequence[Caller]) -> float:
    """The longest time in which a caller with windows in the engine may take part in no step.

    A caller is ahead of the others by at most the time its admitted windows take to encode, prefill and decode; then it
    must wait. Each other caller may get as much before it, and as much again if it left and returned at the clock. With
    two priority classes, one gets four times that.
    """
    seconds, n_slots = runner.seconds, runner.n_slots
    to_begin_s = max(MAX_PREFILL_STALL_S, seconds.encode * runner.n_lanes) + 2 * seconds.decode
    to_end_s = n_slots * MAX_TOKENS * (seconds.decode + seconds.row * n_slots)
    is_mixed = len({caller.priority for caller in callers}) > 1
    return 2 * (to_begin_s + to_end_s) * len(callers) * (WEIGHTS["interactive"] / WEIGHTS["batch"] if is_mixed else 1)


@dataclass
class Waits:
    """When each caller with windows in the engine was last in a step."""

    runner: FakeRunner
    callers: Sequence[Caller]
    served_s: dict[Caller, float] = field(default_factory=dict)

    def check(self, step: Step | None, inside: Iterable[WindowTask]) -> None:
        now_s = self.runner.clock.now_s
        served = {task.caller for task in step.tasks} if step else set()
        still_inside = {task.caller for task in inside}
        self.served_s = {c: now_s if c in served else self.served_s.get(c, now_s) for c in still_inside}
        waited_s = now_s - min(self.served_s.values(), default=now_s)
        assert waited_s <= max_wait_s(self.runner, self.callers), "a caller starves"


class Callers(RuleBasedStateMachine):
    @initialize(
        n_slots=st.integers(1, 12),
        max_encode_batch=st.integers(1, 4),
        n_lanes=st.integers(1, 3),
        n_cached=st.integers(0, 5),
        encode_s=st.sampled_from([0.002, 0.01, 0.04, 0.3]),
        decode_s=st.sampled_from([0.001, 0.02]),
        row_s=st.sampled_from([0.0, 0.001, 0.02]),
    )
    def start(
        self,
        n_slots: int,
        max_encode_batch: int,
        n_lanes: int,
        n_cached: int,
        encode_s: float,
        decode_s: float,
        row_s: float,
    ) -> None:
        clock = Clock()
        self.time = patch.object(choral.engine.engine_loop, "time", clock)
        self.time.start()
        self.runner = FakeRunner(n_slots, n_cached, Seconds(encode_s, decode_s, row_s), clock, n_lanes=n_lanes)
        self.stepped = SteppedLoop(self.runner, max_encode_batch)
        self.max_encode_batch = max_encode_batch
        self.callers = [Caller("batch" if i % 3 == 2 else "interactive") for i in range(N_CALLERS)]
        self.waits = Waits(self.runner, self.callers)
        self.n_submitted = 0

    def alive(self) -> list[WindowTask]:
        return [task for task in self.stepped.tasks if not task.future.done()]

    @rule(
        who=st.integers(0, N_CALLERS - 1),
        n=st.integers(1, 6),
        n_slots=st.sampled_from([0, 1, 1, 1, 2, 5]),
        key=st.integers(0, 7),
        n_tokens=st.integers(1, MAX_TOKENS),
    )
    def submit(self, who: int, n: int, n_slots: int, key: int, n_tokens: int) -> None:
        for i in range(n):
            self.stepped.submit(
                self.callers[who], n_slots=min(n_slots, self.runner.n_slots), key=(key + i) % 9, n_tokens=n_tokens
            )
        self.n_submitted += n

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), through_engine=st.booleans())
    def cancel(self, data: st.DataObject, through_engine: bool) -> None:
        task = data.draw(st.sampled_from(self.alive()))
        if through_engine:
            self.stepped.cancel(task)
        else:
            task.future.cancel()

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), fault=st.sampled_from(["raise", "answer"]))
    def fail(self, data: st.DataObject, fault: Any) -> None:
        self.stepped.plan(data.draw(st.sampled_from(self.alive()))).fault = fault

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.stepped.plan(data.draw(st.sampled_from(self.alive()))).n_tokens = 1

    @rule(key=st.integers(0, 8))
    def break_audio(self, key: int) -> None:
        self.runner.bad_audio ^= {audio(key).key}

    @rule(n=st.integers(1, 8))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.check(self.stepped.step())

    def check(self, step: Step | None) -> None:
        self.waits.check(step, self.stepped.scheduler.tasks)
        if isinstance(step, Encode):
            assert len(step.tasks) <= self.max_encode_batch
        if isinstance(step, Decode):
            assert 0 < sum(task.n_slots for task in step.tasks) <= self.runner.n_slots

    @invariant()
    def nothing_is_lost_and_all_fits(self) -> None:
        if not hasattr(self, "stepped"):
            return
        scheduler = self.stepped.scheduler
        scheduler.check_integrity()
        queued = self.stepped.loop.queue.qsize()
        inside = [task for task in self.stepped.tasks if task in scheduler.tasks]
        assert self.n_submitted - self.stepped.scheduler.counts.windows - len(inside) <= queued
        assert set(self.runner.running) == {task.slots for task in inside if task.slots in self.runner.running}
        assert sum(map(len, self.runner.running)) <= self.runner.n_slots - scheduler.slots.n_free

    def teardown(self) -> None:
        if not hasattr(self, "stepped"):
            return
        try:
            while (step := self.stepped.step()) is not None:
                self.check(step)
            self.everything_has_ended()
        finally:
            self.time.stop()

    def everything_has_ended(self) -> None:
        assert all(task.future.done() for task in self.stepped.tasks)
        scheduler, cache = self.stepped.scheduler, self.stepped.loop.cache
        errors = [None if task.future.cancelled() else task.future.exception() for task in self.stepped.tasks]
        n_failed = sum(error is not None and not isinstance(error, CancelledError) for error in errors)
        n_cancelled = sum(task.future.cancelled() for task in self.stepped.tasks)
        n_cancelled += sum(isinstance(error, CancelledError) for error in errors)
        counts = scheduler.counts
        assert (counts.windows, counts.failed, counts.cancelled) == (self.n_submitted, n_failed, n_cancelled)
        assert not scheduler.tasks
        assert not self.runner.running
        assert scheduler.n_waiting == 0
        assert scheduler.slots.n_free == self.runner.n_slots
        assert not cache.holders
        cache.clear()
        assert cache.n_bytes == 0


TestCallers = Callers.TestCase
TestCallers.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@dataclass(frozen=True)
class Load:
    """A caller that always has this many windows of one kind in the engine."""

    caller: Caller
    n_at_once: int
    n_slots: int
    n_tokens: int


SECONDS = st.builds(
    Seconds, st.sampled_from([0.002, 0.01, 0.04, 0.3]), st.sampled_from([0.001, 0.02]), st.sampled_from([0.0, 0.02])
)
LOADS = st.lists(
    st.builds(
        Load,
        st.builds(Caller, st.sampled_from(["interactive", "interactive", "batch"])),
        st.sampled_from([1, 1, 2, 20]),
        st.sampled_from([0, 1, 1, 1, 2, 5]),
        st.integers(1, MAX_TOKENS),
    ),
    min_size=2,
    max_size=N_CALLERS,
)


@settings(max_examples=60, deadline=None)
@given(
    n_slots=st.integers(5, 12),
    seconds=SECONDS,
    loads=LOADS,
    max_encode_batch=st.integers(1, 4),
    n_lanes=st.integers(1, 3),
)
def test_no_caller_starves_under_steady_load(
    n_slots: int, seconds: Seconds, loads: list[Load], max_encode_batch: int, n_lanes: int
):
    clock = Clock()
    stepped = SteppedLoop(FakeRunner(n_slots, 5, seconds, clock, n_lanes=n_lanes), max_encode_batch)
    waits = Waits(stepped.runner, [load.caller for load in loads])
    in_flight: dict[Caller, list[WindowTask]] = {load.caller: [] for load in loads}
    with patch.object(choral.engine.engine_loop, "time", clock):
        for _ in range(300):
            for load in loads:
                pending = [task for task in in_flight[load.caller] if not task.future.done()]
                for _ in range(load.n_at_once - len(pending)):
                    pending.append(stepped.submit(load.caller, n_slots=load.n_slots, n_tokens=load.n_tokens))
                in_flight[load.caller] = pending
            step = stepped.step()
            assert step is not None
            waits.check(step, stepped.scheduler.tasks)
