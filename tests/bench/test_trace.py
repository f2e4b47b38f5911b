"""Traces of real engines: every window in its place, nobody in two at once, and files that others can read."""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import wait
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any
from xml.etree import ElementTree

import pytest

from choral.api import load
from choral.bench.engine_load import share_out, tick
from choral.bench.idle_runner import IdleRunner
from choral.bench.material import material_of
from choral.bench.picture import svg
from choral.bench.trace import Recorder, Trace, chrome_trace
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.window import Caller, DecodeParams, Window

N_WINDOWS, N_CALLERS, N_TOKENS, N_SLOTS = 40, 5, 6, 8


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Forty windows of five callers through eight slots, one with two beams in between."""
    recorder = Recorder(N_SLOTS)
    engine = Engine(IdleRunner(N_SLOTS, N_TOKENS), EngineSettings(warm_up=False))
    engine.observe(recorder)
    callers = share_out(N_WINDOWS, N_CALLERS)
    all_params = [DecodeParams(n_candidates=2 if index == 20 else 1) for index in range(N_WINDOWS)]
    windows = [Window(tick(index), params) for index, params in enumerate(all_params)]
    wait([engine.submit(window, caller) for window, caller in zip(windows, callers, strict=True)])
    engine.close()
    return recorder.trace()


def no_two_at_once(trace: Trace) -> bool:
    by_slot = defaultdict(list)
    for stay in trace.stays:
        for slot in stay.slots:
            by_slot[slot].append((stay.start_s, stay.stop_s))
    return all(before[1] <= after[0] for stays in by_slot.values() for before, after in pairwise(sorted(stays)))


def test_every_window_is_there_once_and_slots_are_never_shared(trace: Trace) -> None:
    assert no_two_at_once(trace)
    windows = {(stay.caller, stay.number) for stay in trace.stays}
    assert len(windows) == len(trace.stays) == N_WINDOWS
    counts = sorted(sum(stay.caller == caller for stay in trace.stays) for caller in range(1, N_CALLERS + 1))
    assert counts == [5, 5, 5, 5, 20]
    assert sorted(len(stay.slots) for stay in trace.stays) == [1] * (N_WINDOWS - 1) + [2]
    assert {slot for stay in trace.stays for slot in stay.slots} <= set(range(N_SLOTS))


def test_a_stay_goes_from_the_encoder_to_the_last_token(trace: Trace) -> None:
    encodes = {(step.start_s, step.stop_s) for step in trace.steps if step.kind == "Encode"}
    decodes = [step for step in trace.steps if step.kind == "Decode"]
    for stay in trace.stays:
        assert stay.encoded_s in encodes
        assert stay.encoded_s is not None
        assert stay.start_s == stay.encoded_s[0] < stay.encoded_s[1] <= stay.begun_s < stay.stop_s
        assert any(step.stop_s == stay.stop_s for step in decodes)
    assert sum(step.n_windows for step in decodes) == N_WINDOWS * N_TOKENS
    assert trace.steps[0].n_waiting == N_WINDOWS - trace.steps[0].n_windows


def test_the_chrome_trace_is_nested_json(trace: Trace) -> None:
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
    """Of any two slices in a row one holds the other, or they do not touch: what viewers need to draw them."""
    open_until: list[float] = []
    for start, stop in sorted(slices, key=lambda one: (one[0], -one[1])):
        while open_until and open_until[-1] <= start + 0.05:
            open_until.pop()
        if open_until and stop > open_until[-1] + 0.05:
            return False
        open_until.append(stop)
    return True


def test_the_nesting_check_can_fail() -> None:
    assert is_nested([(0, 10), (0, 4), (4, 10), (11, 12)])
    assert not is_nested([(0, 10), (5, 15)])


def test_the_picture_is_svg_for_light_and_dark(trace: Trace) -> None:
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


def test_a_trace_of_nothing_can_be_written_and_drawn() -> None:
    empty = Recorder(4).trace()
    assert json.loads(chrome_trace(empty))["traceEvents"][0]["name"] == "process_name"
    ElementTree.fromstring(svg(empty, "nothing"))


def test_a_window_given_up_leaves_no_trace_of_tokens() -> None:
    recorder, has_decoded = Recorder(N_SLOTS), Event()

    def observe(record: StepRecord) -> None:
        recorder(record)
        if type(record.step).__name__ == "Decode":
            has_decoded.set()

    engine = Engine(IdleRunner(N_SLOTS, 1_000_000), EngineSettings(warm_up=False))
    engine.observe(observe)
    future = engine.submit(Window(tick(1), DecodeParams()), Caller())
    assert has_decoded.wait(60)
    engine.cancel(future)
    engine.close()
    stay = recorder.trace().stays[0]
    assert (stay.caller, stay.number, stay.slots) == (1, 1, (0,))
    assert stay.stop_s == recorder.trace().steps[-1].stop_s


def test_real_windows(tiny_en_pt: Path, speech_clips: list[Path]) -> None:
    material = material_of([str(path) for path in speech_clips])
    with load(tiny_en_pt) as model:
        engine = model._engine
        recorder = Recorder(engine.capacity.n_slots)
        engine.observe(recorder)
        callers = share_out(6, 3)
        params = DecodeParams(language="en")
        wait([engine.submit(Window(material.window(index), params), caller) for index, caller in enumerate(callers)])
    trace = recorder.trace()
    assert no_two_at_once(trace)
    assert len(trace.stays) == 6
    assert len(svg(trace, "six windows")) < 60_000
