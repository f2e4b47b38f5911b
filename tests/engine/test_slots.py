"""Slots: assigned once, released, and always accounted for."""

from __future__ import annotations

import pytest

from choral.engine.slots import Slots


def test_the_lowest_free_slots_are_assigned_first():
    slots = Slots(5)
    assert slots.take("a", 2) == (0, 1)
    assert slots.take("b", 1) == (2,)
    slots.release("a")
    assert slots.n_free == 4
    assert slots.take("c", 3) == (0, 1, 3)
    assert slots.holders == {"b", "c"}
    slots.check_integrity()


def test_taking_no_slots_makes_no_holder():
    slots = Slots(1)
    assert slots.take("a", 0) == ()
    assert slots.holders == set()
    slots.release("a")
    slots.check_integrity()


def test_taking_twice_or_too_many_slots_is_refused():
    slots = Slots(2)
    slots.take("a", 1)
    with pytest.raises(AssertionError):
        slots.take("a", 1)
    with pytest.raises(AssertionError):
        slots.take("b", 2)
    slots.check_integrity()


@pytest.mark.parametrize("free", [[], [0], [1, 1], [1, 5]])
def test_integrity_check_finds_lost_and_doubled_slots(free: list[int]):
    slots = Slots(2)
    slots.take("a", 1)
    slots._free = free
    with pytest.raises(AssertionError, match="held"):
        slots.check_integrity()
