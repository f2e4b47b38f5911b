"""Who is drawn next: in turn over requests, never more than fits, nobody passed for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from choral.engine.scheduler import Scheduler


def scheduler(jobs: list[tuple[int, int, int]]) -> Scheduler[tuple[int, int, int]]:
    """Jobs are (request, number, slots)."""
    waiting: Scheduler[tuple[int, int, int]] = Scheduler(lambda job: job[2])
    for job in jobs:
        waiting.add(job[0], job)
    return waiting


def test_a_short_request_does_not_wait_behind_a_long_one():
    waiting = scheduler([(1, i, 1) for i in range(100)] + [(2, 0, 1)])
    assert waiting.draw(4, 4, is_idle=True) == [(1, 0, 1), (2, 0, 1), (1, 1, 1), (1, 2, 1)]


def test_a_large_window_is_not_passed_for_ever():
    waiting = scheduler([(1, 0, 5), (2, 0, 1), (3, 0, 1)])
    assert waiting.draw(3, 8, is_idle=False) == []
    assert waiting.draw(6, 8, is_idle=False) == [(1, 0, 5), (2, 0, 1)]


def test_an_idle_engine_takes_even_what_is_too_large():
    waiting = scheduler([(1, 0, 64), (2, 0, 1)])
    assert waiting.draw(8, 8, is_idle=True) == [(1, 0, 64)]
    assert waiting.draw(8, 8, is_idle=True) == [(2, 0, 1)]


def test_what_is_left_can_be_taken_at_once():
    waiting = scheduler([(1, 0, 1), (2, 0, 1), (1, 1, 1)])
    assert sorted(waiting.draw_all()) == [(1, 0, 1), (1, 1, 1), (2, 0, 1)]
    assert len(waiting) == 0


@given(
    jobs=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=40),
    n_slots=st.integers(1, 12),
    n_most=st.integers(1, 5),
)
def test_everything_is_drawn_once_in_order_and_within_the_slots(jobs, n_slots, n_most):
    numbered = [(request, number, slots) for number, (request, slots) in enumerate(jobs)]
    waiting = scheduler(numbered)
    drawn = []
    for _ in range(len(numbered) + 1):
        batch = waiting.draw(n_slots, n_most, is_idle=True)
        assert len(batch) <= n_most
        assert sum(job[2] for job in batch) <= n_slots or len(batch) == 1
        drawn += batch
    assert sorted(drawn) == sorted(numbered)
    for request in range(5):
        own = [job for job in drawn if job[0] == request]
        assert own == sorted(own, key=lambda job: job[1])
