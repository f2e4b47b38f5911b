"""Windows that are given up or fail leave alone, and at once."""

from __future__ import annotations

import pytest

from choral.engine.steps import Decode, Prefill
from fake_runner import Clock, Fault
from stepper import stepper, until_decoding


def test_a_cancelled_window_leaves_before_the_next_step(clock: Clock):
    desk = stepper(clock)
    gone, stays = desk.submit(n_tokens=9), desk.submit(n_tokens=9)
    until_decoding(desk, [gone, stays])
    desk.cancel(gone)
    assert desk.step() == Decode((stays,))
    assert gone.future.done()
    assert desk.scheduler.slots.n_free == 7


def test_a_window_cancelled_while_its_batch_was_chosen_is_not_run(clock: Clock):
    desk = stepper(clock)
    tasks = [desk.submit(key=1), desk.submit(key=2)]
    tasks[0].future.cancel()  # by whoever waits; the engine was not told
    desk.steps()
    assert desk.runner.encoded == [1]
    assert not tasks[1].future.cancelled()


def test_a_failed_batch_is_tried_again_window_by_window(clock: Clock):
    desk = stepper(clock, encode=0.0001)
    for _ in range(3):
        desk.submit()
    desk.steps()
    bad = desk.submit(key=66)
    desk.runner.bad_audio.add(bad.key)
    good = [desk.submit(key=key) for key in (5, 5, 6)]
    made = desk.steps()
    assert set(made[0].tasks) == {bad, *good}
    assert isinstance(made[1], Prefill)
    assert bad.future.exception(timeout=0) is not None
    assert [len(task.future.result(timeout=0).tokens) for task in good] == [3, 3, 3]
    assert desk.runner.encoded[2:] == [1, 1]  # 5 once, 6 once


@pytest.mark.parametrize("fault", ["raise", "answer"])
@pytest.mark.parametrize("n_slots", [0, 1, 3])
def test_a_window_fails_alone(clock: Clock, fault: Fault, n_slots: int):
    desk = stepper(clock, n_slots=16)
    tasks = [desk.submit(n_slots=n_slots) for _ in range(4)]
    desk.plan(tasks[2]).fault = fault
    desk.steps()
    assert [task.future.exception(timeout=0) is None for task in tasks] == [True, True, False, True]
    assert desk.scheduler.slots.n_free == 16


def test_a_runner_that_does_not_wait_says_what_a_step_takes(clock: Clock):
    """Whose clock moves elsewhere: what it says is what is charged."""
    desk = stepper(clock, encode=0.001, decode=0.001)
    desk.runner.took_s = 0.25
    task = desk.submit(n_tokens=4)
    desk.step()
    assert desk.scheduler.encode_cost.seconds(1) == pytest.approx(0.25)
    desk.steps()
    assert desk.scheduler.decode_cost.seconds(1) == pytest.approx(0.25)
    assert desk.worker.counts.busy_s == pytest.approx(0.25 * 5)
    assert task.future.done()
