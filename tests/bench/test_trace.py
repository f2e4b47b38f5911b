"""Traces of real engines: every window is in the trace, no slot is used twice at once, and other tools can read it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import wait
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any
from xml.etree import ElementTree

import pytest

from choral.api import load
from choral.bench.engine_load import assign_callers, tiny_audio
from choral.bench.null_runner import NullRunner
from choral.bench.trace import EngineTrace, Recorder, chrome_trace
from choral.bench.trace_svg import svg
from choral.bench.workload import make_workload
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.window import Caller, DecodeParams, Window, WindowAudio

N_WINDOWS, N_CALLERS, N_TOKENS, N_SLOTS = 40, 5, 6, 8


class GatedRunner(NullRunner):
    """Holds the first step until all windows were submitted: the engine starts with the first of them."""

    def __init__(self, n_slots: int, n_tokens: int) -> None:
        super().__init__(n_slots, n_tokens)
        self.gate = Event()

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        assert self.gate.wait(60)
        return super().encode(audios)


@pytest.fixture(scope="module")
def trace() -> EngineTrace:
    """Forty windows of five callers through eight slots, one of them with two beams."""
    recorder, runner = Recorder(N_SLOTS), GatedRunner(N_SLOTS, N_TOKENS)
    engine = Engine(runner, EngineSettings(warm_up=False))
    engine.observe(recorder)
    callers = assign_callers(N_WINDOWS, N_CALLERS)
    all_params = [DecodeParams(n_candidates=2 if index == 20 else 1) for index in range(N_WINDOWS)]
    windows = [Window(tiny_audio(index), params) for index, params in enumerate(all_params)]
    futures = [engine.submit(window, caller) for window, caller in zip(windows, callers, strict=True)]
    runner.gate.set()
    wait(futures)
    engine.close()
    return recorder.trace()


def no_slot_is_shared(trace: EngineTrace) -> bool:
    by_slot = defaultdict(list)
    for use in trace.slot_uses:
        for slot in use.slots:
            by_slot[slot].append((use.start_s, use.stop_s))
    return all(before[1] <= after[0] for slot_uses in by_slot.values() for before, after in pairwise(sorted(slot_uses)))


def test_every_window_is_traced_once_and_no_slot_is_shared(trace: EngineTrace) -> None:
    assert no_slot_is_shared(trace)
    windows = {(use.caller, use.number) for use in trace.slot_uses}
    assert len(windows) == len(trace.slot_uses) == N_WINDOWS
    counts = sorted(sum(use.caller == caller for use in trace.slot_uses) for caller in range(1, N_CALLERS + 1))
    assert counts == [5, 5, 5, 5, 20]
    assert sorted(len(use.slots) for use in trace.slot_uses) == [1] * (N_WINDOWS - 1) + [2]
    assert {slot for use in trace.slot_uses for slot in use.slots} <= set(range(N_SLOTS))


def test_slot_use_runs_from_the_encoder_step_to_the_last_decoder_step(trace: EngineTrace) -> None:
    encodes = {(step.start_s, step.stop_s) for step in trace.steps if step.kind == "Encode"}
    decodes = [step for step in trace.steps if step.kind == "Decode"]
    for use in trace.slot_uses:
        assert use.encoded_s in encodes
        assert use.encoded_s is not None
        assert use.start_s == use.encoded_s[0] < use.encoded_s[1] <= use.begun_s < use.stop_s
        assert any(step.stop_s == use.stop_s for step in decodes)
    assert sum(step.n_windows for step in decodes) == N_WINDOWS * N_TOKENS


def test_windows_wait_until_their_encoder_step(trace: EngineTrace) -> None:
    """From the second step on, when all windows are in the queue."""
    n_encoded = 0
    for index, step in enumerate(trace.steps):
        n_encoded += step.n_windows if step.kind == "Encode" else 0
        assert index == 0 or step.n_waiting == N_WINDOWS - n_encoded


def test_chrome_trace_is_nested(trace: EngineTrace) -> None:
    events: list[dict[str, Any]] = json.loads(chrome_trace(trace))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names[0] == "engine: steps"
    assert set(names.values()) >= {"slot 0", f"slot {N_SLOTS - 2}"}
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    assert set(rows) == set(names)
    for row in rows.values():
        assert is_nested([(start, stop) for start, stop, _ in row])
    kinds = {event["name"] for _, _, event in rows[0]}
    assert kinds == {"Encode", "Prefill", "Decode"}
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"waiting", "rows"}


def is_nested(slices: list[tuple[float, float]]) -> bool:
    """Of any two slices in a row one contains the other, or they are apart: trace viewers require it."""
    open_until: list[float] = []
    for start, stop in sorted(slices, key=lambda one: (one[0], -one[1])):
        while open_until and open_until[-1] <= start + 0.05:
            open_until.pop()
        if open_until and stop > open_until[-1] + 0.05:
            return False
        open_until.append(stop)
    return True


def test_nesting_check_can_fail() -> None:
    assert is_nested([(0, 10), (0, 4), (4, 10), (11, 12)])
    assert not is_nested([(0, 10), (5, 15)])


def test_svg_has_all_windows_and_both_color_schemes(trace: EngineTrace) -> None:
    text = svg(trace, "Batch <1> & more")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") == "Batch <1> & more"
    groups = [group.findtext(f"{space}title") or "" for group in root.iter(f"{space}g")]
    assert len(groups) == N_WINDOWS + 1  # the one with two beams lies in two lanes
    assert len({group.partition(":")[0] for group in groups}) == N_WINDOWS
    assert "prefers-color-scheme:dark" in text
    for box in root.iter(f"{space}rect"):
        assert float(box.get("width", "0")) >= 0
        assert 0 <= float(box.get("x", "0")) <= 960


def test_empty_trace() -> None:
    empty = Recorder(4).trace()
    assert json.loads(chrome_trace(empty))["traceEvents"][0]["name"] == "process_name"
    ElementTree.fromstring(svg(empty, "nothing"))


def test_cancelled_window_ends_with_its_last_step() -> None:
    recorder, has_decoded = Recorder(N_SLOTS), Event()

    def observe(record: StepRecord) -> None:
        recorder(record)
        if type(record.step).__name__ == "Decode":
            has_decoded.set()

    engine = Engine(NullRunner(N_SLOTS, 1_000_000), EngineSettings(warm_up=False))
    engine.observe(observe)
    future = engine.submit(Window(tiny_audio(1), DecodeParams()), Caller())
    assert has_decoded.wait(60)
    engine.cancel(future)
    engine.close()
    use = recorder.trace().slot_uses[0]
    assert (use.caller, use.number, use.slots) == (1, 1, (0,))
    assert use.stop_s == recorder.trace().steps[-1].stop_s


def test_trace_of_a_real_model(tiny_en_pt: Path, speech_clips: list[Path]) -> None:
    workload = make_workload([str(path) for path in speech_clips])
    with load(tiny_en_pt, compute_type="float32") as model:
        engine = model._engine
        recorder = Recorder(engine.capacity.n_slots)
        engine.observe(recorder)
        callers = assign_callers(6, 3)
        params = DecodeParams(language="en")
        wait([engine.submit(Window(workload.window(index), params), caller) for index, caller in enumerate(callers)])
    trace = recorder.trace()
    assert no_slot_is_shared(trace)
    assert len(trace.slot_uses) == 6
    assert len(svg(trace, "six windows")) < 60_000
