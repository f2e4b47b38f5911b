"""Several engines behind one `submit`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.group import EngineGroup
from choral.engine.steps import Pending
from choral.engine.window import Caller, Decoded, DecodeParams, Window
from choral.errors import EngineClosed, QueueFull, UsageError
from fake_runner import FakeRunner, Plan, audio

SOON_S = 20


class Desk:
    """Two engines that can be held up, in a group."""

    def __init__(self, queue_limit: int = 4096) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.runners = [FakeRunner(4, on_call=lambda _: self.gate.wait(SOON_S) and None) for _ in range(2)]
        settings = EngineSettings(device="cpu", warm_up=False)
        self.group = EngineGroup([Engine(runner, settings) for runner in self.runners], queue_limit)
        self._n_submitted = 0

    def submit(self, key: int | None = None, caller: Caller | None = None) -> Pending[Decoded]:
        self._n_submitted += 1
        for runner in self.runners:
            runner.plans[self._n_submitted] = Plan(3)
        window = Window(audio(1000 + self._n_submitted if key is None else key), DecodeParams(seed=self._n_submitted))
        return self.group.submit(window, caller)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.gate.set()
    desk.group.close()


def test_windows_go_where_the_least_is_under_way(desk: Desk) -> None:
    desk.gate.clear()
    pending = [desk.submit() for _ in range(10)]
    desk.gate.set()
    assert all(each.result(SOON_S).tokens == (0, 1, 2) for each in pending)
    assert [sum(runner.encoded) for runner in desk.runners] == [5, 5]
    assert desk.group.stats.windows == 10
    assert desk.group.stats.encoded == 10


def test_the_same_audio_goes_where_it_is_known(desk: Desk) -> None:
    for _ in range(6):
        desk.submit(key=7).result(SOON_S)
    assert sorted(sum(runner.encoded) for runner in desk.runners) == [0, 1]
    assert desk.group.stats.cache_hits == 5


def test_what_is_no_longer_wanted_leaves_its_own_engine(desk: Desk) -> None:
    desk.gate.clear()
    pending = [desk.submit() for _ in range(6)]
    for each in pending[:4]:
        desk.group.cancel(each)
    desk.gate.set()
    for each in pending[:4]:
        with pytest.raises(CancelledError):
            each.result(SOON_S)
    assert all(each.result(SOON_S) for each in pending[4:])
    assert desk.group.drain(SOON_S)


def test_the_queue_is_bounded_for_all_together() -> None:
    desk = Desk(queue_limit=3)
    desk.gate.clear()
    known = Caller()
    try:
        for _ in range(20):
            desk.submit(caller=known)  # who was taken on is not refused
        with pytest.raises(QueueFull, match="are waiting already"):
            desk.submit()
    finally:
        desk.gate.set()
        desk.group.close()


def test_nothing_is_taken_after_the_end(desk: Desk) -> None:
    assert desk.group.drain(SOON_S)
    with pytest.raises(EngineClosed):
        desk.submit()


@pytest.mark.parametrize("devices", ["x", "0;1", "cpu:1", "0,,1", "0,-1"])
def test_devices_that_make_no_sense_are_refused(devices: str) -> None:
    with pytest.raises(UsageError, match="separated by commas"):
        EngineSettings(devices=devices)


def test_names_of_devices() -> None:
    assert EngineSettings(devices="0, 1,cpu").device_names == ["cuda:0", "cuda:1", "cpu"]
