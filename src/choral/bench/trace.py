"""A trace of an engine: its steps, and which window used which slots when, in Chrome's trace format.

Pass a `Recorder` to `Engine.observe`. Open the file in Perfetto or chrome://tracing: a row for the steps, a row for
each slot, and counters of waiting windows and decoded rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Decode, Encode, Prefill, Step, WindowTask

ENGINE_ROW, FIRST_SLOT_ROW = 0, 1


@dataclass(frozen=True)
class TracedStep:
    kind: str  # Encode, Prefill, Decode or Align
    start_s: float  # since the first step
    stop_s: float
    scheduling_s: float
    n_windows: int
    n_rows: int  # slots of its windows
    n_waiting: int


@dataclass(frozen=True)
class SlotUse:
    """One window's time in its slots."""

    caller: int  # counted from 1, in order of their first step
    number: int  # of the window among its caller's, counted from 1
    slots: tuple[int, ...]
    start_s: float
    encoded_s: tuple[float, float] | None  # its encoder step; None: it was in the encoder cache
    begun_s: float  # end of its prefill
    stop_s: float


@dataclass(frozen=True)
class EngineTrace:
    n_slots: int
    steps: tuple[TracedStep, ...]
    slot_uses: tuple[SlotUse, ...]  # in order of their start

    @property
    def duration_s(self) -> float:
        return max((step.stop_s for step in self.steps), default=0.0)


@dataclass
class _TaskTimes:
    caller: int
    number: int
    start_s: float
    stop_s: float
    encoded_s: tuple[float, float] | None = None
    begun_s: float | None = None


class Recorder:
    """Pass it to `Engine.observe`, and take the trace when the engine is idle."""

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._steps: list[TracedStep] = []
        self._times: dict[WindowTask, _TaskTimes] = {}
        self._tasks_of: dict[object, list[WindowTask]] = {}  # by caller, in order of their first step
        self._origin_s: float | None = None

    def __call__(self, record: StepRecord) -> None:
        if self._origin_s is None:
            self._origin_s = record.started_s
        start_s = record.started_s - self._origin_s
        step = record.step
        traced = TracedStep(
            kind=type(step).__name__,
            start_s=start_s,
            stop_s=start_s + record.run_s,
            scheduling_s=record.scheduling_s,
            n_windows=len(step.tasks),
            n_rows=sum(len(task.slots) for task in step.tasks),
            n_waiting=record.n_waiting,
        )
        self._steps.append(traced)
        for task in step.tasks:
            self._add_step(task, step, traced)

    def _add_step(self, task: WindowTask, step: Step, traced: TracedStep) -> None:
        if task not in self._times:
            tasks = self._tasks_of.setdefault(task.caller, [])
            tasks.append(task)
            caller = self._times[tasks[0]].caller if len(tasks) > 1 else len(self._tasks_of)
            self._times[task] = _TaskTimes(caller, len(tasks), traced.start_s, traced.stop_s)
        times = self._times[task]
        times.stop_s = traced.stop_s
        if isinstance(step, Encode):
            times.encoded_s = (traced.start_s, traced.stop_s)
        elif isinstance(step, Prefill | Decode) and times.begun_s is None:
            times.begun_s = traced.stop_s

    def trace(self) -> EngineTrace:
        """Leaves out windows that were cancelled before their prefill, and those that need no slot."""
        slot_uses = [
            SlotUse(one.caller, one.number, task.slots, one.start_s, one.encoded_s, one.begun_s, one.stop_s)
            for task, one in self._times.items()
            if task.slots and one.begun_s is not None
        ]
        return EngineTrace(self._n_slots, tuple(self._steps), tuple(sorted(slot_uses, key=lambda use: use.start_s)))


def chrome_trace(trace: EngineTrace) -> str:
    events = [*_names(trace), *_step_events(trace), *_slot_events(trace), *_counters(trace)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")) + "\n"


def _names(trace: EngineTrace) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "choral"}}
    used = sorted({slot for use in trace.slot_uses for slot in use.slots})
    for row, name in [(ENGINE_ROW, "engine: steps"), *((FIRST_SLOT_ROW + slot, f"slot {slot}") for slot in used)]:
        yield {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 1, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}}


def _step_events(trace: EngineTrace) -> Iterator[dict[str, Any]]:
    for step in trace.steps:
        counts = {"windows": step.n_windows, "rows": step.n_rows, "scheduling_us": round(step.scheduling_s * 1e6, 1)}
        yield _slice(ENGINE_ROW, step.kind, "step", step.start_s, step.stop_s, counts)


def _slot_events(trace: EngineTrace) -> Iterator[dict[str, Any]]:
    for use in trace.slot_uses:
        caller = {"caller": use.caller, "window": use.number}
        for slot in use.slots:
            row = FIRST_SLOT_ROW + slot
            yield _slice(row, f"caller {use.caller}, window {use.number}", "window", use.start_s, use.stop_s, caller)
            if use.encoded_s is not None:
                yield _slice(row, "encode", "phase", *use.encoded_s, {})


def _counters(trace: EngineTrace) -> Iterator[dict[str, Any]]:
    for step in trace.steps:
        yield _count("waiting", step.start_s, step.n_waiting)
        if step.kind == "Decode":
            yield _count("rows", step.start_s, step.n_rows)


def _slice(
    row: int, name: str, category: str, start_s: float, stop_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    start_us, stop_us = round(start_s * 1e6, 1), round(stop_s * 1e6, 1)
    event = {"ph": "X", "pid": 1, "tid": row, "name": name, "cat": category}
    return {**event, "ts": start_us, "dur": round(stop_us - start_us, 1), "args": arguments}


def _count(name: str, at_s: float, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": 1, "name": name, "ts": round(at_s * 1e6, 1), "args": {name: value}}
