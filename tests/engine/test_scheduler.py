"""Which step comes next: fairness between callers, slots, encode budget, decode batches, lanes."""

from __future__ import annotations

from collections import Counter

import pytest

from choral.engine.steps import Decode, Encode, Step, WindowTask
from choral.engine.window import Caller
from fake_runner import Clock
from stepper import kinds, make_stepper, until_decoding


def callers_of(step: Step | None) -> list[Caller]:
    return [task.caller for task in step.tasks] if step else []


# Fair share


def test_a_short_request_does_not_wait_behind_a_long_one(clock: Clock):
    stepper = make_stepper(clock, encode=0.03, decode=0.01)
    file = Caller()
    for _ in range(50):
        stepper.submit(file, n_tokens=20)
    for _ in range(40):
        stepper.step()
    short = stepper.submit(n_tokens=3)
    step = stepper.step()
    assert isinstance(step, Encode)
    assert step.tasks[0] is short
    assert kinds([stepper.step() for _ in range(3)]) == ["Prefill", "Decode", "Decode"]
    assert short.future.result(timeout=0).tokens == (0, 1, 2)
    assert stepper.scheduler.n_waiting > 30


def test_a_new_caller_starts_level_with_the_least_served(clock: Clock):
    """One caller decodes one window beside the many of another, so it has had less; a third is level with it."""
    stepper = make_stepper(clock, n_slots=16, encode=0.001, decode=0.01)
    file, slow = Caller(), Caller()
    for _ in range(30):
        stepper.submit(file, n_tokens=100)
    stepper.submit(slow, n_tokens=100)
    for _ in range(60):
        stepper.step()
    third = stepper.submit()
    step = stepper.step()
    assert isinstance(step, Encode)
    assert step.tasks[0] is third


def test_callers_are_admitted_in_turn(clock: Clock):
    stepper = make_stepper(clock, max_encode_batch=2, encode=0.05)
    first, second = Caller(), Caller()
    for caller in (first, first, first, second, second):
        stepper.submit(caller)
    entered = [step.tasks for step in stepper.steps() if isinstance(step, Encode)]
    order = [task.caller for tasks in entered for task in tasks]
    assert order == [first, second, first, second, first]


def test_a_returning_caller_has_no_credit(clock: Clock):
    stepper = make_stepper(clock, n_slots=1, encode=0.1)
    away, here = Caller(), Caller()
    stepper.submit(away)
    stepper.steps()
    for _ in range(20):
        stepper.submit(here)
    for _ in range(20):
        stepper.step()
    for _ in range(5):
        stepper.submit(away)
    order = [step.tasks[0].caller for step in stepper.steps() if isinstance(step, Encode)]
    assert sorted(order[:4], key=id) == sorted([away, here] * 2, key=id)


@pytest.mark.parametrize("first", ["interactive", "batch"])
def test_interactive_goes_before_batch(clock: Clock, first: str):
    stepper = make_stepper(clock, n_slots=1, encode=0.1)
    batch, interactive = Caller("batch"), Caller("interactive")
    for caller in [interactive, batch] if first == "interactive" else [batch, interactive]:
        stepper.submit(caller)
    order = [step.tasks[0].caller for step in stepper.steps() if isinstance(step, Encode)]
    assert order == [interactive, batch]


def test_batch_gets_a_fifth_of_the_time_beside_interactive(clock: Clock):
    stepper = make_stepper(clock, n_slots=1, encode=0.1, decode=0.1)
    batch, interactive = Caller("batch"), Caller("interactive")
    for _ in range(100):
        stepper.submit(batch)
        stepper.submit(interactive)
    served = Counter(callers_of(stepper.step())[0] for _ in range(300))
    assert served[interactive] / served[batch] == pytest.approx(4, abs=0.5)


# Slots


def test_a_window_with_many_beams_is_not_starved(clock: Clock):
    stepper = make_stepper(clock, encode=0.01, decode=0.01)
    small = [stepper.submit(n_tokens=n) for n in range(4, 12)]
    until_decoding(stepper, small)
    large = stepper.submit(n_slots=5)
    later = [stepper.submit() for _ in range(20)]
    while not large.slots:
        step = stepper.step()
        assert isinstance(step, Decode) or (step and large in step.tasks), "another took a place it waits for"
    assert sum(task.future.done() for task in small) == 5  # it was admitted as soon as there were slots
    stepper.steps()
    assert all(task.future.done() for task in [large, *later])


def test_the_last_slots_are_reserved_for_callers_without_slots(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, encode=0.001, decode=0.01)
    file = Caller()
    tasks = [stepper.submit(file, n_tokens=1000) for _ in range(40)]
    for _ in range(60):
        stepper.step()
        assert stepper.scheduler.slots.n_free >= 2
    assert sum(bool(task.slots) and not task.future.done() for task in tasks) == 14
    others = [stepper.submit(n_tokens=50) for _ in range(2)]
    until_decoding(stepper, others)
    assert stepper.scheduler.slots.n_free == 0


def test_a_window_that_needs_all_slots_gets_them(clock: Clock):
    stepper = make_stepper(clock, n_slots=16)
    caller = Caller()
    tasks = [stepper.submit(caller), stepper.submit(caller, n_slots=16), stepper.submit(caller)]
    stepper.steps()
    assert [len(task.future.result(timeout=0).tokens) for task in tasks] == [3, 3, 3]


def test_aligning_needs_no_slot(clock: Clock):
    stepper = make_stepper(clock, n_slots=1, decode=0.01)
    until_decoding(stepper, [stepper.submit(n_tokens=30)])
    known = stepper.submit(n_slots=0)
    assert kinds([stepper.step(), stepper.step()]) == ["Encode", "Align"]
    assert known.future.done()


# Encode


def test_encode_batches_stay_within_the_budget(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, max_encode_batch=4, encode=0.0001)
    for _ in range(12):
        stepper.submit()
    stepper.steps()
    assert stepper.runner.encoded[:4] == [1, 2, 4, 4]  # the cost of a window is unknown before the first


def test_prefill_stalls_decoding_for_a_bounded_time(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, max_encode_batch=8, encode=0.03)
    for _ in range(12):
        stepper.submit(n_tokens=10)
    made = stepper.steps()
    assert stepper.runner.encoded == [1, 2, 3, 3, 3]
    together = "".join(kind[0] for kind in kinds(made)).split("D")
    assert together[0] == "EPEP"  # 0.09 s
    assert max(map(len, together[1:])) == 2


def test_stall_time_is_ignored_when_nothing_decodes(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, max_encode_batch=8, encode=0.2)
    first = [stepper.submit(n_tokens=10) for _ in range(2)]
    stepper.step(), stepper.step(), stepper.step()
    for task in first:
        stepper.cancel(task)
    later = stepper.submit()
    stepper.steps()
    assert later.future.done()


def test_encode_batches_stay_within_the_free_slots(clock: Clock):
    stepper = make_stepper(clock, n_slots=3, max_encode_batch=8, encode=0.0001)
    for _ in range(9):
        stepper.submit()
    stepper.steps()
    assert stepper.runner.encoded == [1, 2, 3, 3]


def test_the_same_audio_is_encoded_once(clock: Clock):
    stepper = make_stepper(clock, max_encode_batch=4)
    for key in (1, 3, 4):
        stepper.submit(key=key)
    stepper.steps()
    tasks = [stepper.submit(key=key, n_slots=n) for key, n in [(2, 1), (2, 2), (2, 0), (1, 1)]]
    made = stepper.steps()
    assert stepper.runner.encoded == [1, 2, 1]
    assert kinds(made)[:3] == ["Encode", "Align", "Prefill"]
    assert set(made[0].tasks) == set(tasks[:3])
    assert stepper.scheduler.counts.cache_hits == 3


@pytest.mark.parametrize(("n_slots", "kind"), [(1, "Prefill"), (5, "Prefill"), (0, "Align")])
def test_cached_audio_skips_the_encoder(clock: Clock, n_slots: int, kind: str):
    stepper = make_stepper(clock)
    stepper.submit(key=7)
    stepper.steps()
    stepper.submit(key=7, n_slots=n_slots)
    assert kinds([stepper.step()]) == [kind]
    assert stepper.scheduler.counts.cache_hits == 1


# Decode


def test_all_windows_of_the_only_caller_share_every_step(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, encode=0.001, decode=0.0, row=0.01)
    caller = Caller()
    tasks = [stepper.submit(caller, n_tokens=50) for _ in range(10)]
    until_decoding(stepper, tasks)
    steps = [stepper.step() for _ in range(5)]
    assert [set(step.tasks) for step in steps if step] == [set(tasks)] * 5


@pytest.mark.parametrize(
    ("fixed", "row", "n_most"),
    [(0.001, 0.01, 3), (0.0065, 0.001, 6), (0.01, 0.0, 13)],  # 1.5 times the step of two rows: 3, 6 and any number
)
def test_a_caller_with_one_window_is_in_every_step(clock: Clock, fixed: float, row: float, n_most: int):
    stepper = make_stepper(clock, n_slots=16, encode=0.001, decode=fixed, row=row)
    file, other = Caller(), Caller()
    many = [stepper.submit(file, n_tokens=1000) for _ in range(12)]
    until_decoding(stepper, many)
    single = stepper.submit(other, n_tokens=1000)
    until_decoding(stepper, [single])
    for _ in range(5):
        stepper.step()
    counts: Counter[WindowTask] = Counter()
    for _ in range(120):
        step = stepper.step()
        assert isinstance(step, Decode)
        assert len(step.tasks) == n_most
        counts.update(step.tasks)
    assert counts[single] == 120
    assert max(counts[task] for task in many) - min(counts[task] for task in many) <= 1  # and they take turns


def test_callers_with_many_windows_share_equally_beside_a_third(clock: Clock):
    stepper = make_stepper(clock, n_slots=16, encode=0.001, decode=0.0065, row=0.001)
    one, other, third = Caller(), Caller(), Caller()
    until_decoding(stepper, [stepper.submit(caller, n_tokens=1000) for caller in [one] * 6 + [other] * 6])
    until_decoding(stepper, [stepper.submit(third, n_tokens=1000)])
    counts = Counter(caller for _ in range(100) for caller in callers_of(stepper.step()))
    assert counts[third] == 100
    assert counts[one] == pytest.approx(counts[other], rel=0.1)


def test_the_first_decode_step_needs_no_known_cost(clock: Clock):
    """Two windows of one and one of another begin before any step of the decoder was measured."""
    stepper = make_stepper(clock, encode=0.0001)
    caller = Caller()
    tasks = [stepper.submit(who) for who in (caller, Caller(), caller)]
    made = stepper.steps()
    first = next(step for step in made if isinstance(step, Decode))
    assert set(first.tasks) == set(tasks)


# Lanes


def test_encoder_lanes_are_filled_however_slow_the_encoder(clock: Clock):
    stepper = make_stepper(clock, n_lanes=2, encode=3.0)
    for _ in range(4):
        stepper.submit()
    entered = [len(step.tasks) for step in stepper.steps() if isinstance(step, Encode)]
    assert entered == [2, 2]


def test_a_window_waits_for_a_second_slot_to_fill_the_lanes(clock: Clock):
    stepper = make_stepper(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepper.submit(n_tokens=n) for n in (5, 8, 20, 20)]
    until_decoding(stepper, first)
    waiting = [stepper.submit(), stepper.submit()]
    steps = []
    while not first[1].future.done():
        assert not waiting[0].slots
        steps.append(stepper.step())
    assert first[0].future.done()
    assert set(kinds(steps)) == {"Decode"}
    entering = stepper.step()
    assert isinstance(entering, Encode)
    assert set(entering.tasks) == set(waiting)


def test_the_last_window_does_not_wait_for_lanes(clock: Clock):
    stepper = make_stepper(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepper.submit(n_tokens=n) for n in (5, 20, 20, 20)]
    until_decoding(stepper, first)
    last = stepper.submit()
    while not first[0].future.done():
        stepper.step()
    entering = stepper.step()
    assert isinstance(entering, Encode)
    assert entering.tasks == (last,)


def test_cached_audio_does_not_wait_for_lanes(clock: Clock):
    stepper = make_stepper(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepper.submit(n_tokens=n, key=n) for n in (5, 20, 21, 22)]
    until_decoding(stepper, first)
    again, _ = stepper.submit(key=20), stepper.submit()
    while not first[0].future.done():
        stepper.step()
    entering = stepper.step()
    assert kinds([entering]) == ["Prefill"]
    assert entering.tasks[0] is again
