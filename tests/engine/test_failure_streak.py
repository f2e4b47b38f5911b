"""When a device counts as failed: after failures in a row, and not because of single windows."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import choral.engine.group
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.failure_streak import MAX_FAILURES
from choral.engine.group import EngineGroup
from choral.errors import WindowFailed
from fake_runner import SOON_S, Clock, FakeRunner, window
from stepped_loop import SteppedLoop, make_stepped_loop

BROKEN = "CUDA error: device-side assert triggered"


def break_calls(runner: FakeRunner, *calls: str) -> None:
    def fail(call: str) -> None:
        if call in calls:
            raise RuntimeError(BROKEN)

    runner.on_call = fail


def repair(runner: FakeRunner) -> None:
    runner.on_call = lambda call: None


def run_one(stepped: SteppedLoop, **window: int) -> None:
    stepped.submit(**window)
    stepped.steps()


@pytest.mark.parametrize("broken", [("encode", "prefill", "decode", "align"), ("encode",), ("prefill",), ("decode",)])
def test_a_device_that_fails_at_every_window_counts_as_failed(
    clock: Clock, broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
):
    stepped = make_stepped_loop(clock)
    break_calls(stepped.runner, *broken)
    for _ in range(MAX_FAILURES - 1):
        run_one(stepped)
    assert stepped.loop.failures.reason is None
    for _ in range(10):
        run_one(stepped)
    assert BROKEN in str(stepped.loop.failures.reason)
    assert [record.levelno for record in caplog.records if BROKEN in record.message] == [logging.ERROR]
    repair(stepped.runner)
    run_one(stepped)
    assert stepped.loop.failures.reason is None


def test_a_batch_that_fails_counts_each_of_its_windows(clock: Clock):
    stepped = make_stepped_loop(clock, max_encode_batch=MAX_FAILURES)
    break_calls(stepped.runner, "encode")
    for _ in range(MAX_FAILURES):
        stepped.submit()
    stepped.steps()
    assert stepped.loop.failures.reason is not None


@pytest.mark.parametrize("call", ["encode", "prefill", "decode", "align"])
def test_a_batch_whose_windows_succeed_one_by_one_is_no_failure(clock: Clock, call: str):
    stepped = make_stepped_loop(clock)
    run, batches = getattr(stepped.runner, call), []

    def run_one(windows: Sequence[Any]) -> Any:
        if len(windows) > 1:
            batches.append(windows)
            raise RuntimeError("out of memory")
        return run(windows)

    setattr(stepped.runner, call, run_one)
    tasks = [stepped.submit(n_tokens=2 * MAX_FAILURES, n_slots=call != "align") for _ in range(3)]
    stepped.steps()
    assert batches
    assert all(task.future.exception(0) is None for task in tasks)
    assert stepped.loop.failures.reason is None


def test_a_retry_has_the_memory_of_the_failed_attempt(clock: Clock):
    """Errors of a batch, and of windows that failed before, must not keep the locals of their frames."""
    stepped = make_stepped_loop(clock)
    tensors: list[weakref.ref[FakeRunner]] = []

    def decode(windows: Sequence[Any]) -> Any:
        assert all(tensor() is None for tensor in tensors)
        tensor = FakeRunner()
        tensors.append(weakref.ref(tensor))
        raise RuntimeError("out of memory")

    stepped.runner.decode = decode  # type: ignore[method-assign]
    tasks = [stepped.submit() for _ in range(3)]
    stepped.steps()
    assert all(isinstance(task.future.exception(0), WindowFailed) for task in tasks)
    assert len(tensors) >= len(tasks) + 1


def test_bad_windows_between_good_ones_do_not_count(clock: Clock):
    stepped = make_stepped_loop(clock)
    for _ in range(2 * MAX_FAILURES):
        bad = stepped.submit()
        stepped.plan(bad).fault = "raise"
        stepped.submit()
        stepped.steps()
        assert bad.future.exception(0) is not None
    assert stepped.loop.failures.reason is None


def test_cancelled_windows_do_not_count(clock: Clock):
    stepped = make_stepped_loop(clock)
    for _ in range(2 * MAX_FAILURES):
        task = stepped.submit(n_tokens=100)
        for _ in range(2):  # encode, prefill
            stepped.step()
        stepped.cancel(task)
        stepped.steps()
    assert stepped.loop.failures.reason is None


def test_a_self_test_ends_the_failure_of_an_idle_engine(engine: Engine, runner: FakeRunner):
    break_calls(runner, "decode")
    for number in range(MAX_FAILURES):
        assert isinstance(engine.submit(window(number)).exception(SOON_S), WindowFailed)
    assert BROKEN in str(engine.failure)
    assert engine.is_working  # it still takes windows: one may succeed
    with pytest.raises(WindowFailed, match=BROKEN):
        engine.self_test()
    repair(runner)
    engine.self_test()
    assert engine.failure is None
    engine.close()
    assert "closed" in str(engine.failure)


@pytest.fixture
def runners() -> list[FakeRunner]:
    return [FakeRunner(4, device="cuda:0"), FakeRunner(4, device="cuda:1")]


@pytest.fixture
def group(runners: list[FakeRunner]) -> Iterator[EngineGroup]:
    group = EngineGroup([Engine(runner, EngineSettings(warm_up=False)) for runner in runners], queue_limit=99)
    yield group
    group.close()


def test_a_group_gives_no_windows_to_a_failed_device(
    group: EngineGroup, runners: list[FakeRunner], monkeypatch: pytest.MonkeyPatch
):
    """It fails them at once, and so would always have the fewest in flight. A self-test shows that it works again."""
    break_calls(runners[0], "encode")
    group._next_retest_s = float("inf")
    for number in range(5 * MAX_FAILURES):
        assert group.submit(window(number)).result(SOON_S)  # by the other device
    assert group.stats.failed == MAX_FAILURES
    assert group.failure is None
    assert BROKEN in group.failed_devices["cuda:0"]
    assert "cuda:1" not in group.failed_devices
    repair(runners[0])
    assert group.submit(window(100)).exception(SOON_S) is None
    assert not runners[0].encoded  # not before the next self-test
    monkeypatch.setattr(choral.engine.group, "RETEST_S", 0.0)
    group._next_retest_s = 0.0
    group.submit(window(101)).result(SOON_S)
    deadline_s = time.monotonic() + SOON_S
    while group.failed_devices:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    group.submit(window(102)).result(SOON_S)
    assert sum(runners[0].encoded) == 2  # the self-test, and a window


def test_a_group_fails_if_all_its_devices_do(group: EngineGroup, runners: list[FakeRunner]):
    break_calls(runners[0], "decode")
    group.self_test()
    assert "self-test failed on cuda:0" in group.failed_devices["cuda:0"]  # one failure is enough
    assert group.failure is None
    break_calls(runners[1], "decode")
    with pytest.raises(WindowFailed, match=BROKEN):
        group.self_test()
    assert BROKEN in str(group.failure)
    repair(runners[1])
    group.self_test()
    assert group.failure is None
    assert list(group.failed_devices) == ["cuda:0"]
