"""The cost model learns from the steps that were run."""

from __future__ import annotations

import pytest

from choral.engine.cost_model import DECAY, StepCost


def learnt(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for n_items, seconds in steps:
        cost.learn(n_items, seconds)
    return cost


def test_no_cost_is_known_before_the_first_step():
    cost = StepCost()
    assert not cost.is_known
    assert cost.seconds(5) == 0
    assert cost.max_items(1.0, 21) == 1


def test_fixed_and_per_item_costs_are_separated():
    cost = learnt(*[(n, 0.01 + 0.002 * n) for n in (1, 4, 16, 2)])
    assert [cost.seconds(n) for n in (0, 1, 10)] == pytest.approx([0.01, 0.012, 0.03])
    assert cost.max_items(0.0305, 21) == 10
    assert cost.max_items(0.1, 21) == 21  # as many as there are, and 16 were seen
    assert cost.max_items(0.001, 21) == 1


def test_with_one_batch_size_the_cost_is_per_item():
    cost = learnt((4, 0.2), (4, 0.2))
    assert cost.seconds(2) == pytest.approx(0.1)
    assert cost.max_items(0.11, 21) == 2


def test_items_without_cost_do_not_limit_the_batch():
    assert learnt((1, 0.05), (11, 0.05)).max_items(0.06, 21) == 21


def test_batches_grow_to_twice_the_largest_seen_at_most():
    assert learnt((1, 0.3), (2, 0.2)).max_items(0.1, 21) == 4


def test_costs_are_never_negative():
    falling = learnt((1, 0.1), (10, 0.05))
    assert falling.seconds(20) == pytest.approx(falling.seconds(1))
    rising = learnt((10, 0.01), (20, 0.1))
    assert rising.seconds(0) == 0


def test_old_steps_decay():
    cost = learnt(*[(n, 1.0 * n) for n in (1, 2)], *[(n, 0.1 * n) for n in (1, 2)] * 200)
    assert 2 * DECAY**400 < 1e-3
    assert cost.seconds(3) == pytest.approx(0.3, rel=0.01)
