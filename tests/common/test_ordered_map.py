"""Results in order from several threads, a bounded number of them, and no thread that stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from choral.common.ordered_map import ordered_map


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_results_are_in_order_whoever_is_first() -> None:
    later_done = threading.Event()

    def square(number: int) -> int:
        if number == 0:
            assert later_done.wait(10)
        if number == 2:
            later_done.set()
        return number * number

    results = ordered_map(square, range(50), n_threads=3, max_ahead=6, name="test-order")
    assert list(results) == [number * number for number in range(50)]


def test_takes_no_more_than_it_may() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in count():
            taken.append(number)
            yield number

    results = ordered_map(abs, items(), n_threads=2, max_ahead=4, name="test-bound")
    for number in range(20):
        assert next(results) == number
        assert len(taken) <= number + 4
    results.close()
    for thread in threads_of("test-bound"):
        thread.join(10)
    assert not threads_of("test-bound")


def test_an_error_comes_in_its_place() -> None:
    results = ordered_map(lambda number: 1 // (3 - number), range(10), n_threads=2, max_ahead=4, name="test-error")
    assert [next(results), next(results), next(results)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    for thread in threads_of("test-error"):
        thread.join(10)
    assert not threads_of("test-error")
