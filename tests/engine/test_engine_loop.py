"""The engine loop: failures, cancellation and timing of steps."""

from __future__ import annotations

import pytest

from choral.engine.cost_model import CostModel
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Decode, Prefill
from fake_runner import Clock, FakeRunner, Fault, Seconds
from stepper import Stepper, make_stepper, until_decoding


def test_a_cancelled_window_leaves_before_the_next_step(clock: Clock):
    stepper = make_stepper(clock)
    gone, stays = stepper.submit(n_tokens=9), stepper.submit(n_tokens=9)
    until_decoding(stepper, [gone, stays])
    stepper.cancel(gone)
    assert stepper.step() == Decode((stays,))
    assert gone.future.done()
    assert stepper.scheduler.slots.n_free == 7


def test_a_future_cancelled_without_the_engine_is_not_run(clock: Clock):
    stepper = make_stepper(clock)
    tasks = [stepper.submit(key=1), stepper.submit(key=2)]
    tasks[0].future.cancel()  # without the engine
    stepper.steps()
    assert stepper.runner.encoded == [1]
    assert not tasks[1].future.cancelled()


def test_a_failed_batch_is_retried_window_by_window(clock: Clock):
    stepper = make_stepper(clock, encode=0.0001)
    for _ in range(3):
        stepper.submit()
    stepper.steps()
    bad = stepper.submit(key=66)
    stepper.runner.bad_audio.add(bad.key)
    good = [stepper.submit(key=key) for key in (5, 5, 6)]
    made = stepper.steps()
    assert set(made[0].tasks) == {bad, *good}
    assert isinstance(made[1], Prefill)
    assert bad.future.exception(timeout=0) is not None
    assert [len(task.future.result(timeout=0).tokens) for task in good] == [3, 3, 3]
    assert stepper.runner.encoded[2:] == [1, 1]  # 5 once, 6 once


@pytest.mark.parametrize("fault", ["raise", "answer"])
@pytest.mark.parametrize("n_slots", [0, 1, 3])
def test_a_window_fails_alone(clock: Clock, fault: Fault, n_slots: int):
    stepper = make_stepper(clock, n_slots=16)
    tasks = [stepper.submit(n_slots=n_slots) for _ in range(4)]
    stepper.plan(tasks[2]).fault = fault
    stepper.steps()
    assert [task.future.exception(timeout=0) is None for task in tasks] == [True, True, False, True]
    assert stepper.scheduler.slots.n_free == 16


def test_a_runner_that_times_itself_is_charged_by_its_own_costs(clock: Clock):
    """The wall clock says nothing about a runner whose calls return before the work is done."""
    costs = CostModel()
    costs.encode.learn(1, 0.25)
    stepper = Stepper(FakeRunner(seconds=Seconds(encode=0.001), clock=clock, costs=costs))
    records: list[StepRecord] = []
    stepper.loop.observer = records.append
    stepper.submit()
    stepper.step()
    assert records[0].run_s == 0.25
    assert costs.encode.seconds(1) == pytest.approx(0.25)  # not learnt from the wall clock
    assert costs.busy_s == pytest.approx(0.25)
    stepper.step()
    assert records[1].run_s == pytest.approx(0.001)  # no prefill was measured yet: the wall clock is used


def test_a_runner_that_waits_is_timed_by_the_engine(clock: Clock):
    stepper = make_stepper(clock, encode=0.1, decode=0.002)
    stepper.submit(n_tokens=4)
    stepper.steps()
    costs = stepper.scheduler.costs
    assert costs.encode.seconds(1) == pytest.approx(0.1)
    assert costs.decode.seconds(1) == pytest.approx(0.002)
    assert costs.busy_s == pytest.approx(0.1 + 4 * 0.002)


def test_cancelled_windows_do_not_count_as_failed(clock: Clock):
    stepper = make_stepper(clock)
    waiting, decoding, untold, bad, good = tasks = [stepper.submit(n_tokens=9) for _ in range(5)]
    stepper.cancel(waiting)
    stepper.plan(bad).fault = "answer"
    until_decoding(stepper, [decoding, untold, good])
    stepper.cancel(decoding)
    untold.future.cancel()  # running already: it can no longer be cancelled without the engine
    stepper.steps()
    counts = stepper.scheduler.counts
    assert all(task.future.done() for task in tasks)
    assert (counts.windows, counts.failed, counts.cancelled) == (5, 1, 2)
