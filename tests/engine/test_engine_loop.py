"""The engine loop: failures, cancellation and timing of steps."""

from __future__ import annotations

import pytest

from choral.engine.cost_model import CostModel
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Decode, Prefill
from fake_runner import Clock, FakeRunner, Fault, Seconds
from stepped_loop import SteppedLoop, make_stepped_loop, until_decoding


def test_a_cancelled_window_leaves_before_the_next_step(clock: Clock):
    stepped = make_stepped_loop(clock)
    gone, stays = stepped.submit(n_tokens=9), stepped.submit(n_tokens=9)
    until_decoding(stepped, [gone, stays])
    stepped.cancel(gone)
    assert stepped.step() == Decode((stays,))
    assert gone.future.done()
    assert stepped.scheduler.slots.n_free == 7


def test_a_future_cancelled_without_the_engine_is_not_run(clock: Clock):
    stepped = make_stepped_loop(clock)
    tasks = [stepped.submit(key=1), stepped.submit(key=2)]
    tasks[0].future.cancel()  # without the engine
    stepped.steps()
    assert stepped.runner.encoded == [1]
    assert not tasks[1].future.cancelled()


def test_a_failed_batch_is_retried_window_by_window(clock: Clock):
    stepped = make_stepped_loop(clock, encode=0.0001)
    for _ in range(3):
        stepped.submit()
    stepped.steps()
    bad = stepped.submit(key=66)
    stepped.runner.bad_audio.add(bad.key)
    good = [stepped.submit(key=key) for key in (5, 5, 6)]
    made = stepped.steps()
    assert set(made[0].tasks) == {bad, *good}
    assert isinstance(made[1], Prefill)
    assert bad.future.exception(timeout=0) is not None
    assert [len(task.future.result(timeout=0).tokens) for task in good] == [3, 3, 3]
    assert stepped.runner.encoded[2:] == [1, 1]  # 5 once, 6 once


@pytest.mark.parametrize("fault", ["raise", "answer"])
@pytest.mark.parametrize("n_slots", [0, 1, 3])
def test_a_window_fails_alone(clock: Clock, fault: Fault, n_slots: int):
    stepped = make_stepped_loop(clock, n_slots=16)
    tasks = [stepped.submit(n_slots=n_slots) for _ in range(4)]
    stepped.plan(tasks[2]).fault = fault
    stepped.steps()
    assert [task.future.exception(timeout=0) is None for task in tasks] == [True, True, False, True]
    assert stepped.scheduler.slots.n_free == 16


def test_a_runner_that_times_itself_is_charged_by_its_own_costs(clock: Clock):
    """Wall time does not measure a runner whose calls return before the work is done."""
    costs = CostModel()
    costs.encode.learn(1, 0.25)
    stepped = SteppedLoop(FakeRunner(seconds=Seconds(encode=0.001), clock=clock, costs=costs))
    records: list[StepRecord] = []
    stepped.loop.observer = records.append
    stepped.submit()
    stepped.step()
    assert records[0].run_s == 0.25
    assert costs.encode.seconds(1) == pytest.approx(0.25)  # not learnt from the wall clock
    assert costs.busy_s == pytest.approx(0.25)
    stepped.step()
    assert records[1].run_s == pytest.approx(0.001)  # no prefill was measured yet: the wall clock is used


def test_a_runner_that_waits_is_timed_by_the_engine(clock: Clock):
    stepped = make_stepped_loop(clock, encode=0.1, decode=0.002)
    stepped.submit(n_tokens=4)
    stepped.steps()
    costs = stepped.scheduler.costs
    assert costs.encode.seconds(1) == pytest.approx(0.1)
    assert costs.decode.seconds(1) == pytest.approx(0.002)
    assert costs.busy_s == pytest.approx(0.1 + 4 * 0.002)


def test_cancelled_windows_do_not_count_as_failed(clock: Clock):
    stepped = make_stepped_loop(clock)
    waiting, decoding, untold, bad, good = tasks = [stepped.submit(n_tokens=9) for _ in range(5)]
    stepped.cancel(waiting)
    stepped.plan(bad).fault = "answer"
    until_decoding(stepped, [decoding, untold, good])
    stepped.cancel(decoding)
    untold.future.cancel()  # running already: it can no longer be cancelled without the engine
    stepped.steps()
    counts = stepped.scheduler.counts
    assert all(task.future.done() for task in tasks)
    assert (counts.windows, counts.failed, counts.cancelled) == (5, 1, 2)
