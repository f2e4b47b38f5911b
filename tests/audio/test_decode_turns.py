"""Turns of decoders: one at a time, fair, and never a reason to wait for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from choral.audio import decode_turns
from choral.audio.decode_turns import DecodeTurns

Work = Callable[[int], None]


def run_together(turns: DecodeTurns, n_threads: int, n_pieces: int, work: Work) -> list[int]:
    """The thread of each piece, in the order in which they were done; all threads queue before the first piece."""
    order: list[int] = []
    threads = []

    def decode(number: int) -> None:
        with turns.join() as turn:
            for _ in range(n_pieces):
                work(number)
                order.append(number)
                turn.pause()

    with turns.join():
        for number in range(n_threads):
            threads.append(threading.Thread(target=decode, args=(number,)))
            threads[-1].start()
            while len(turns._queue) < number + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return order


def test_every_piece_ends_a_turn_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_turns, "TURN_S", 0.0)
    turns = DecodeTurns()
    assert run_together(turns, 3, 4, lambda _: time.sleep(0.001)) == [0, 1, 2] * 4
    assert not turns._queue


def test_a_turn_that_is_not_over_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_turns, "TURN_S", 60.0)
    assert run_together(DecodeTurns(), 3, 4, lambda _: None) == [0] * 4 + [1] * 4 + [2] * 4


def test_a_stuck_decoder_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_turns, "PATIENCE_S", 0.05)
    others_are_done = threading.Barrier(3)  # the first one waits for the others, which come only if they do not wait

    def decode(_: int) -> None:
        others_are_done.wait(10)

    assert sorted(run_together(DecodeTurns(), 3, 1, decode)) == [0, 1, 2]


def test_an_error_gives_the_turn_to_the_next() -> None:
    turns = DecodeTurns()
    with pytest.raises(ZeroDivisionError), turns.join():
        raise ZeroDivisionError
    assert run_together(turns, 2, 1, lambda _: None) == [0, 1]
