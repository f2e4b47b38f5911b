"""A worker without its thread, one step at a time, on a clock that only its steps move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from choral.engine.steps import Job, Pending, Step
from choral.engine.window import Align, Caller, Decode, Window, Work
from choral.engine.worker import GivenUp, Submitted, Worker
from fake_runner import Clock, FakeRunner, Plan, Seconds, audio


class Stepper:
    def __init__(self, runner: FakeRunner, most_encoded_together: int = 4) -> None:
        self.runner = runner
        self.worker = Worker(runner, runner.capacity, most_encoded_together)
        self.scheduler = self.worker.scheduler
        self.jobs: list[Job] = []
        runner.known = self.worker.cache
        self._numbers = count()

    def submit(
        self, caller: Caller | None = None, *, n_slots: int = 1, key: int | None = None, n_tokens: int = 3
    ) -> Job:
        """Without slots it is a text to align."""
        number = next(self._numbers)
        self.runner.plans[number] = Plan(n_tokens)
        work: Work[Any] = Decode(seed=number, n_candidates=n_slots)
        if not n_slots:
            work = Align(text_tokens=(number,), n_frames=100, language="en", task="transcribe")
        job = Job(Window(audio(1000 + number if key is None else key), work), caller or Caller(), Pending())
        self.jobs.append(job)
        self.worker.queue.put(Submitted(job))
        return job

    def plan(self, job: Job) -> Plan:
        return self.runner.plan(job.window.work)

    def cancel(self, job: Job) -> None:
        job.future.cancel()
        self.worker.queue.put(GivenUp(job))

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


def until_decoding(desk: Stepper, jobs: Sequence[Job]) -> None:
    for _ in range(100):
        desk.step()
        wanted = {job.slots for job in jobs}
        if () not in wanted and wanted <= set(desk.runner.running):
            return
    raise AssertionError("they never began")
