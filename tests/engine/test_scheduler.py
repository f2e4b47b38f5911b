"""Which step comes next: fairness between callers, slots, encode budget, decode batches, lanes."""

from __future__ import annotations

from collections import Counter

import pytest

from choral.engine.steps import Decode, Encode, Step, WindowTask
from choral.engine.window import Caller
from fake_runner import Clock
from stepped_loop import kinds, make_stepped_loop, until_decoding


def callers_of(step: Step | None) -> list[Caller]:
    return [task.caller for task in step.tasks] if step else []


# Fair share


def test_a_short_request_does_not_wait_behind_a_long_one(clock: Clock):
    stepped = make_stepped_loop(clock, encode=0.03, decode=0.01)
    file = Caller()
    for _ in range(50):
        stepped.submit(file, n_tokens=20)
    for _ in range(40):
        stepped.step()
    short = stepped.submit(n_tokens=3)
    step = stepped.step()
    assert isinstance(step, Encode)
    assert step.tasks[0] is short
    assert kinds([stepped.step() for _ in range(3)]) == ["Prefill", "Decode", "Decode"]
    assert short.future.result(timeout=0).tokens == (0, 1, 2)
    assert stepped.scheduler.n_waiting > 30


def test_a_new_caller_starts_level_with_the_least_served(clock: Clock):
    """A caller with one window has been served less than one with many; a third starts level with it."""
    stepped = make_stepped_loop(clock, n_slots=16, encode=0.001, decode=0.01)
    file, slow = Caller(), Caller()
    for _ in range(30):
        stepped.submit(file, n_tokens=100)
    stepped.submit(slow, n_tokens=100)
    for _ in range(60):
        stepped.step()
    third = stepped.submit()
    step = stepped.step()
    assert isinstance(step, Encode)
    assert step.tasks[0] is third


def test_callers_are_admitted_in_turn(clock: Clock):
    stepped = make_stepped_loop(clock, max_encode_batch=2, encode=0.05)
    first, second = Caller(), Caller()
    for caller in (first, first, first, second, second):
        stepped.submit(caller)
    entered = [step.tasks for step in stepped.steps() if isinstance(step, Encode)]
    order = [task.caller for tasks in entered for task in tasks]
    assert order == [first, second, first, second, first]


def test_a_returning_caller_has_no_credit(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=1, encode=0.1)
    away, here = Caller(), Caller()
    stepped.submit(away)
    stepped.steps()
    for _ in range(20):
        stepped.submit(here)
    for _ in range(20):
        stepped.step()
    for _ in range(5):
        stepped.submit(away)
    order = [step.tasks[0].caller for step in stepped.steps() if isinstance(step, Encode)]
    assert sorted(order[:4], key=id) == sorted([away, here] * 2, key=id)


@pytest.mark.parametrize("first", ["interactive", "batch"])
def test_interactive_goes_before_batch(clock: Clock, first: str):
    stepped = make_stepped_loop(clock, n_slots=1, encode=0.1)
    batch, interactive = Caller("batch"), Caller("interactive")
    for caller in [interactive, batch] if first == "interactive" else [batch, interactive]:
        stepped.submit(caller)
    order = [step.tasks[0].caller for step in stepped.steps() if isinstance(step, Encode)]
    assert order == [interactive, batch]


def test_batch_gets_a_fifth_of_the_time_beside_interactive(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=1, encode=0.1, decode=0.1)
    batch, interactive = Caller("batch"), Caller("interactive")
    for _ in range(100):
        stepped.submit(batch)
        stepped.submit(interactive)
    served = Counter(callers_of(stepped.step())[0] for _ in range(300))
    assert served[interactive] / served[batch] == pytest.approx(4, abs=0.5)


# Slots


def test_a_window_with_many_beams_is_not_starved(clock: Clock):
    stepped = make_stepped_loop(clock, encode=0.01, decode=0.01)
    small = [stepped.submit(n_tokens=n) for n in range(4, 12)]
    until_decoding(stepped, small)
    large = stepped.submit(n_slots=5)
    later = [stepped.submit() for _ in range(20)]
    while not large.slots:
        step = stepped.step()
        assert isinstance(step, Decode) or (step and large in step.tasks), "another took a place it waits for"
    assert sum(task.future.done() for task in small) == 5  # it was admitted as soon as there were slots
    stepped.steps()
    assert all(task.future.done() for task in [large, *later])


def test_the_last_slots_are_reserved_for_callers_without_slots(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, encode=0.001, decode=0.01)
    file = Caller()
    tasks = [stepped.submit(file, n_tokens=1000) for _ in range(40)]
    for _ in range(60):
        stepped.step()
        assert stepped.scheduler.slots.n_free >= 2
    assert sum(bool(task.slots) and not task.future.done() for task in tasks) == 14
    others = [stepped.submit(n_tokens=50) for _ in range(2)]
    until_decoding(stepped, others)
    assert stepped.scheduler.slots.n_free == 0


def test_a_window_that_needs_all_slots_gets_them(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16)
    caller = Caller()
    tasks = [stepped.submit(caller), stepped.submit(caller, n_slots=16), stepped.submit(caller)]
    stepped.steps()
    assert [len(task.future.result(timeout=0).tokens) for task in tasks] == [3, 3, 3]


def test_aligning_needs_no_slot(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=1, decode=0.01)
    until_decoding(stepped, [stepped.submit(n_tokens=30)])
    known = stepped.submit(n_slots=0)
    assert kinds([stepped.step(), stepped.step()]) == ["Encode", "Align"]
    assert known.future.done()


# Encode


def test_encode_batches_stay_within_the_budget(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, max_encode_batch=4, encode=0.0001)
    for _ in range(12):
        stepped.submit()
    stepped.steps()
    assert stepped.runner.encoded[:4] == [1, 2, 4, 4]  # the cost of a window is unknown before the first


def test_prefill_stalls_decoding_for_a_bounded_time(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, max_encode_batch=8, encode=0.03)
    for _ in range(12):
        stepped.submit(n_tokens=10)
    made = stepped.steps()
    assert stepped.runner.encoded == [1, 2, 3, 3, 3]
    together = "".join(kind[0] for kind in kinds(made)).split("D")
    assert together[0] == "EPEP"  # 0.09 s
    assert max(map(len, together[1:])) == 2


def test_a_micro_batch_is_filled_before_it_decodes(clock: Clock):
    """No window can join it later, so it waits for those that are waiting, however long they take to encode."""
    stepped = make_stepped_loop(clock, is_micro_batch=True, encode=0.5)
    file = Caller()
    for _ in range(10):
        stepped.submit(file)
    step = next(step for step in stepped.steps() if isinstance(step, Decode))
    assert len(step.tasks) == 7  # the last eighth of the slots is reserved for others


def test_a_micro_batch_does_not_let_a_short_request_wait(clock: Clock):
    stepped = make_stepped_loop(clock, is_micro_batch=True, encode=0.5, decode=0.1)
    file = Caller()
    for _ in range(20):
        stepped.submit(file)
    while not isinstance(stepped.step(), Decode):
        pass
    short = stepped.submit()
    while not isinstance(step := stepped.step(), Encode) or short not in step.tasks:
        pass
    assert kinds([stepped.step(), stepped.step()]) == ["Prefill", "Decode"]


def test_stall_time_is_ignored_when_nothing_decodes(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, max_encode_batch=8, encode=0.2)
    first = [stepped.submit(n_tokens=10) for _ in range(2)]
    stepped.step(), stepped.step(), stepped.step()
    for task in first:
        stepped.cancel(task)
    later = stepped.submit()
    stepped.steps()
    assert later.future.done()


def test_encode_batches_stay_within_the_free_slots(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=3, max_encode_batch=8, encode=0.0001)
    for _ in range(9):
        stepped.submit()
    stepped.steps()
    assert stepped.runner.encoded == [1, 2, 3, 3]


def test_the_same_audio_is_encoded_once(clock: Clock):
    stepped = make_stepped_loop(clock, max_encode_batch=4)
    for key in (1, 3, 4):
        stepped.submit(key=key)
    stepped.steps()
    tasks = [stepped.submit(key=key, n_slots=n) for key, n in [(2, 1), (2, 2), (2, 0), (1, 1)]]
    made = stepped.steps()
    assert stepped.runner.encoded == [1, 2, 1]
    assert kinds(made)[:3] == ["Encode", "Align", "Prefill"]
    assert set(made[0].tasks) == set(tasks[:3])
    assert stepped.scheduler.counts.cache_hits == 3


@pytest.mark.parametrize(("n_slots", "kind"), [(1, "Prefill"), (5, "Prefill"), (0, "Align")])
def test_cached_audio_skips_the_encoder(clock: Clock, n_slots: int, kind: str):
    stepped = make_stepped_loop(clock)
    stepped.submit(key=7)
    stepped.steps()
    stepped.submit(key=7, n_slots=n_slots)
    assert kinds([stepped.step()]) == [kind]
    assert stepped.scheduler.counts.cache_hits == 1


# Decode


def test_all_windows_of_the_only_caller_share_every_step(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, encode=0.001, decode=0.0, row=0.01)
    caller = Caller()
    tasks = [stepped.submit(caller, n_tokens=50) for _ in range(10)]
    until_decoding(stepped, tasks)
    steps = [stepped.step() for _ in range(5)]
    assert [set(step.tasks) for step in steps if step] == [set(tasks)] * 5


@pytest.mark.parametrize(
    ("fixed", "row", "n_most"),
    [(0.001, 0.01, 3), (0.0065, 0.001, 6), (0.01, 0.0, 13)],  # 1.5 times the step of two rows: 3, 6 and any number
)
def test_a_caller_with_one_window_is_in_every_step(clock: Clock, fixed: float, row: float, n_most: int):
    stepped = make_stepped_loop(clock, n_slots=16, encode=0.001, decode=fixed, row=row)
    file, other = Caller(), Caller()
    many = [stepped.submit(file, n_tokens=1000) for _ in range(12)]
    until_decoding(stepped, many)
    single = stepped.submit(other, n_tokens=1000)
    until_decoding(stepped, [single])
    for _ in range(5):
        stepped.step()
    counts: Counter[WindowTask] = Counter()
    for _ in range(120):
        step = stepped.step()
        assert isinstance(step, Decode)
        assert len(step.tasks) == n_most
        counts.update(step.tasks)
    assert counts[single] == 120
    assert max(counts[task] for task in many) - min(counts[task] for task in many) <= 1  # and they take turns


def test_callers_with_many_windows_share_equally_beside_a_third(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=16, encode=0.001, decode=0.0065, row=0.001)
    one, other, third = Caller(), Caller(), Caller()
    until_decoding(stepped, [stepped.submit(caller, n_tokens=1000) for caller in [one] * 6 + [other] * 6])
    until_decoding(stepped, [stepped.submit(third, n_tokens=1000)])
    counts = Counter(caller for _ in range(100) for caller in callers_of(stepped.step()))
    assert counts[third] == 100
    assert counts[one] == pytest.approx(counts[other], rel=0.1)


def test_the_first_decode_step_needs_no_known_cost(clock: Clock):
    """Two windows of one caller and one of another start before any decode step was measured."""
    stepped = make_stepped_loop(clock, encode=0.0001)
    caller = Caller()
    tasks = [stepped.submit(who) for who in (caller, Caller(), caller)]
    made = stepped.steps()
    first = next(step for step in made if isinstance(step, Decode))
    assert set(first.tasks) == set(tasks)


# Lanes


def test_encoder_lanes_are_filled_however_slow_the_encoder(clock: Clock):
    stepped = make_stepped_loop(clock, n_lanes=2, encode=3.0)
    for _ in range(4):
        stepped.submit()
    entered = [len(step.tasks) for step in stepped.steps() if isinstance(step, Encode)]
    assert entered == [2, 2]


def test_a_window_waits_for_a_second_slot_to_fill_the_lanes(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepped.submit(n_tokens=n) for n in (5, 8, 20, 20)]
    until_decoding(stepped, first)
    waiting = [stepped.submit(), stepped.submit()]
    steps = []
    while not first[1].future.done():
        assert not waiting[0].slots
        steps.append(stepped.step())
    assert first[0].future.done()
    assert set(kinds(steps)) == {"Decode"}
    entering = stepped.step()
    assert isinstance(entering, Encode)
    assert set(entering.tasks) == set(waiting)


def test_the_last_window_does_not_wait_for_lanes(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepped.submit(n_tokens=n) for n in (5, 20, 20, 20)]
    until_decoding(stepped, first)
    last = stepped.submit()
    while not first[0].future.done():
        stepped.step()
    entering = stepped.step()
    assert isinstance(entering, Encode)
    assert entering.tasks == (last,)


def test_cached_audio_does_not_wait_for_lanes(clock: Clock):
    stepped = make_stepped_loop(clock, n_slots=4, n_lanes=2, encode=0.2, decode=0.01)
    first = [stepped.submit(n_tokens=n, key=n) for n in (5, 20, 21, 22)]
    until_decoding(stepped, first)
    again, _ = stepped.submit(key=20), stepped.submit()
    while not first[0].future.done():
        stepped.step()
    entering = stepped.step()
    assert kinds([entering]) == ["Prefill"]
    assert entering.tasks[0] is again
