"""When a device counts as failed: after failures in a row, and not because of single windows."""

from __future__ import annotations

import logging

import pytest

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


def test_a_batch_whose_windows_succeed_one_by_one_is_no_failure(clock: Clock):
    stepped = make_stepped_loop(clock)
    decode = stepped.runner.decode
    stepped.runner.decode = lambda windows: decode(windows if len(windows) == 1 else 1 / 0)  # type: ignore[assignment]
    tasks = [stepped.submit(n_tokens=2 * MAX_FAILURES) for _ in range(3)]
    stepped.steps()
    assert all(task.future.exception(0) is None for task in tasks)
    assert stepped.loop.failures.reason is None


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


def test_a_group_gives_no_windows_to_a_failed_device():
    """It fails them at once, and so would always have the fewest in flight."""
    runners = [FakeRunner(4), FakeRunner(4)]
    group = EngineGroup([Engine(runner, EngineSettings(warm_up=False)) for runner in runners], queue_limit=99)
    break_calls(runners[0], "encode")
    failed = [group.submit(window(number)).exception(SOON_S) is not None for number in range(5 * MAX_FAILURES)]
    assert sum(failed) == MAX_FAILURES
    assert BROKEN in str(group.failure)
    with pytest.raises(WindowFailed):
        group.self_test()
    repair(runners[0])
    group.self_test()
    assert group.failure is None
    group.close()
