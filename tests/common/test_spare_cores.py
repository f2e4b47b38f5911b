"""Idle cores are measured over some time; short recordings do not ask for them."""

from __future__ import annotations

import pytest

from choral.common import spare_cores
from choral.common.processor import n_usable_cores
from choral.common.spare_cores import MAX_THREADS, MEASURE_S, MIN_LENGTH_S, VALID_S, SpareCores, n_threads_for


class Machine:
    """A clock, and cores that idle while it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.idle_s, self.n_idle = 100.0, 0.0, 0.0
        monkeypatch.setattr(spare_cores.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(spare_cores, "idle_s", lambda: self.idle_s)

    def run(self, seconds: float) -> None:
        self.now_s += seconds
        self.idle_s += seconds * self.n_idle


def test_a_measurement_takes_time_and_is_shared_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, cores = Machine(monkeypatch), SpareCores()
    machine.n_idle = 13.2
    assert cores.poll() is None
    machine.run(MEASURE_S / 2)
    assert cores.poll() is None
    machine.run(MEASURE_S)
    assert cores.poll() == 13
    machine.n_idle = 0
    machine.run(VALID_S * 0.9)
    assert cores.poll() == 13
    machine.run(VALID_S * 0.2)
    assert cores.poll() is None
    machine.run(MEASURE_S)
    assert cores.poll() == 0


def test_an_abandoned_measurement_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, cores = Machine(monkeypatch), SpareCores()
    assert cores.poll() is None
    machine.n_idle = 8
    machine.run(60)
    assert cores.poll() is None
    machine.run(MEASURE_S)
    assert cores.poll() == 8


def test_threads_of_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_cores.SPARE_CORES, "poll", lambda: 7)
    assert n_threads_for(None) == 1
    assert n_threads_for(MIN_LENGTH_S / 2) == 1
    assert n_threads_for(MIN_LENGTH_S) == 8
    monkeypatch.setattr(spare_cores.SPARE_CORES, "poll", lambda: 500)
    assert n_threads_for(3_600) == MAX_THREADS


def test_idle_time_of_this_machine() -> None:
    before_s = spare_cores.idle_s()
    assert 0 <= before_s <= spare_cores.idle_s() <= 1e9 * n_usable_cores()
