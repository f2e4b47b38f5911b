"""Places are given once, come back, and always add up."""

from __future__ import annotations

import pytest

from choral.engine.slots import Slots


def test_the_lowest_places_go_first_and_come_back():
    slots = Slots(5)
    assert slots.take("a", 2) == (0, 1)
    assert slots.take("b", 1) == (2,)
    slots.release("a")
    assert slots.n_free == 4
    assert slots.take("c", 3) == (0, 1, 3)
    assert slots.holders == {"b", "c"}
    slots.check_integrity()


def test_who_takes_none_holds_none():
    slots = Slots(1)
    assert slots.take("a", 0) == ()
    assert slots.holders == set()
    slots.release("a")
    slots.check_integrity()


def test_nobody_takes_twice_or_more_than_there_is():
    slots = Slots(2)
    slots.take("a", 1)
    with pytest.raises(AssertionError):
        slots.take("a", 1)
    with pytest.raises(AssertionError):
        slots.take("b", 2)
    slots.check_integrity()


@pytest.mark.parametrize("free", [[], [0], [1, 1], [1, 5]])
def test_a_place_that_is_lost_or_doubled_is_noticed(free: list[int]):
    slots = Slots(2)
    slots.take("a", 1)
    slots._free = free
    with pytest.raises(AssertionError, match="held"):
        slots.check_integrity()
