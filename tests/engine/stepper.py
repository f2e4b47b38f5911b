"""A worker without its thread, one step at a time, on a clock that only its steps move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from choral.engine.engine_loop import Cancel, EngineLoop, Submitted
from choral.engine.steps import Pending, Step, WindowTask
from choral.engine.window import AlignParams, Caller, DecodeParams, Params, Window
from fake_runner import Clock, FakeRunner, Plan, Seconds, audio


class Stepper:
    def __init__(self, runner: FakeRunner, most_encoded_together: int = 4) -> None:
        self.runner = runner
        self.worker = EngineLoop(runner, runner.capacity, most_encoded_together)
        self.scheduler = self.worker.scheduler
        self.tasks: list[WindowTask] = []
        runner.known = self.worker.cache
        self._numbers = count()

    def submit(
        self, caller: Caller | None = None, *, n_slots: int = 1, key: int | None = None, n_tokens: int = 3
    ) -> WindowTask:
        """Without slots it is a text to align."""
        number = next(self._numbers)
        self.runner.plans[number] = Plan(n_tokens)
        params: Params[Any] = DecodeParams(seed=number, n_candidates=n_slots)
        if not n_slots:
            params = AlignParams(text_tokens=(number,), n_frames=100, language="en", task="transcribe")
        task = WindowTask(Window(audio(1000 + number if key is None else key), params), caller or Caller(), Pending())
        self.tasks.append(task)
        self.worker.queue.put(Submitted(task))
        return task

    def plan(self, task: WindowTask) -> Plan:
        return self.runner.plan(task.window.params)

    def cancel(self, task: WindowTask) -> None:
        task.future.cancel()
        self.worker.queue.put(Cancel(task))

    def step(self) -> Step | None:
        assert self.worker.receive(is_idle=False)
        step = self.scheduler.schedule()
        if step is not None:
            self.worker.perform(step, 0.0)
        self.scheduler.check_integrity()
        return step

    def steps(self, n_most: int = 10_000) -> list[Step]:
        """All that is left to do."""
        made = []
        while (step := self.step()) is not None:
            made.append(step)
            assert len(made) < n_most, "it does not end"
        return made


def stepper(
    clock: Clock, n_slots: int = 8, most: int = 4, n_cached: int = 100, n_lanes: int = 1, **seconds: float
) -> Stepper:
    return Stepper(FakeRunner(n_slots, n_cached, Seconds(**seconds), clock, n_lanes=n_lanes), most)


def kinds(steps: Sequence[Step | None]) -> list[str]:
    return [type(step).__name__ for step in steps]


def until_decoding(desk: Stepper, tasks: Sequence[WindowTask]) -> None:
    for _ in range(100):
        desk.step()
        wanted = {task.slots for task in tasks}
        if () not in wanted and wanted <= set(desk.runner.running):
            return
    raise AssertionError("they never began")
