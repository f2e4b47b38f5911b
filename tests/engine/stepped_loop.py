"""An engine loop without its thread, run one step at a time, on a clock that only its steps advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from choral.engine.engine_loop import Cancel, EngineLoop, Submitted
from choral.engine.steps import Pending, Step, WindowTask
from choral.engine.window import AlignParams, Caller, DecodeParams, Params, Window
from fake_runner import Clock, FakeRunner, Plan, Seconds, audio


class SteppedLoop:
    def __init__(self, runner: FakeRunner, max_encode_batch: int = 4) -> None:
        self.runner = runner
        self.loop = EngineLoop(runner, runner.capacity, max_encode_batch)
        self.scheduler = self.loop.scheduler
        self.tasks: list[WindowTask] = []
        runner.known = self.loop.cache
        self._numbers = count()
        self._schedule, self._scheduled = self.scheduler.schedule, None
        self.scheduler.schedule = self._remember  # type: ignore[method-assign]

    def _remember(self) -> Step | None:
        self._scheduled = self._schedule()
        return self._scheduled

    def submit(
        self, caller: Caller | None = None, *, n_slots: int = 1, key: int | None = None, n_tokens: int = 3
    ) -> WindowTask:
        """Submit a window; with n_slots=0, a text to align."""
        number = next(self._numbers)
        self.runner.plans[number] = Plan(n_tokens)
        params: Params[Any] = DecodeParams(seed=number, n_candidates=n_slots)
        if not n_slots:
            params = AlignParams(text_tokens=(number,), n_frames=100, language="en", task="transcribe")
        task = WindowTask(Window(audio(1000 + number if key is None else key), params), caller or Caller(), Pending())
        self.tasks.append(task)
        self.loop.queue.put(Submitted(task))
        return task

    def plan(self, task: WindowTask) -> Plan:
        return self.runner.plan(task.window.params)

    def cancel(self, task: WindowTask) -> None:
        task.future.cancel()
        self.loop.queue.put(Cancel(task))

    def step(self) -> Step | None:
        assert self.loop.receive(is_idle=False)
        self.loop.step()
        self.scheduler.check_integrity()
        return self._scheduled

    def steps(self, limit: int = 10_000) -> list[Step]:
        """Run until nothing is left to do."""
        made = []
        while (step := self.step()) is not None:
            made.append(step)
            assert len(made) < limit, "it does not end"
        return made


def make_stepped_loop(
    clock: Clock,
    n_slots: int = 8,
    max_encode_batch: int = 4,
    n_cached: int = 100,
    n_lanes: int = 1,
    is_micro_batch: bool = False,
    **seconds: float,
) -> SteppedLoop:
    runner = FakeRunner(n_slots, n_cached, Seconds(**seconds), clock, n_lanes=n_lanes)
    runner.capacity = replace(runner.capacity, is_micro_batch=is_micro_batch)
    return SteppedLoop(runner, max_encode_batch)


def kinds(steps: Sequence[Step | None]) -> list[str]:
    return [type(step).__name__ for step in steps]


def until_decoding(stepped: SteppedLoop, tasks: Sequence[WindowTask]) -> None:
    for _ in range(100):
        stepped.step()
        slots = {task.slots for task in tasks}
        if () not in slots and slots <= set(stepped.runner.running):
            return
    raise AssertionError("they were never prefilled")
