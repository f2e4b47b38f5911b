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
from choral.errors import EngineClosed, QueueFull, UsageError, WindowFailed
from fake_runner import FakeRunner, Plan, audio

SOON_S = 20


class PausableGroup:
    """A group of two engines that can be paused."""

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
def harness() -> Iterator[PausableGroup]:
    harness = PausableGroup()
    yield harness
    harness.gate.set()
    harness.group.close()


def test_windows_go_to_the_engine_with_the_fewest_in_flight(harness: PausableGroup) -> None:
    harness.gate.clear()
    pending = [harness.submit() for _ in range(10)]
    harness.gate.set()
    assert all(each.result(SOON_S).tokens == (0, 1, 2) for each in pending)
    assert [sum(runner.encoded) for runner in harness.runners] == [5, 5]
    assert harness.group.stats.windows == 10
    assert harness.group.stats.encoded == 10


def test_the_same_audio_goes_to_the_same_engine(harness: PausableGroup) -> None:
    for _ in range(6):
        harness.submit(key=7).result(SOON_S)
    assert sorted(sum(runner.encoded) for runner in harness.runners) == [0, 1]
    assert harness.group.stats.cache_hits == 5


def test_cancelled_windows_leave_their_engine(harness: PausableGroup) -> None:
    harness.gate.clear()
    pending = [harness.submit() for _ in range(6)]
    for each in pending[:4]:
        harness.group.cancel(each)
    harness.gate.set()
    for each in pending[:4]:
        with pytest.raises(CancelledError):
            each.result(SOON_S)
    assert all(each.result(SOON_S) for each in pending[4:])
    assert harness.group.drain(SOON_S)


def test_a_window_that_fails_everywhere_is_tried_twice() -> None:
    def fail(_: str) -> None:
        raise RuntimeError("broken")

    runners = [FakeRunner(4, on_call=fail) for _ in range(3)]
    group = EngineGroup([Engine(runner, EngineSettings(device="cpu", warm_up=False)) for runner in runners], 99)
    with pytest.raises(WindowFailed, match="broken"):
        group.submit(Window(audio(1), DecodeParams())).result(SOON_S)
    assert group.stats.failed == 2
    group.close()


def test_a_cancelled_window_is_not_tried_again(harness: PausableGroup) -> None:
    harness.gate.clear()
    caller = Caller()
    pending = [harness.submit(caller=caller) for _ in range(4)]
    direct = harness.submit()
    assert direct.cancel()
    harness.group.cancel_all(caller)
    harness.gate.set()
    for each in [*pending, direct]:
        with pytest.raises(CancelledError):
            each.result(SOON_S)
    harness.group.close()
    assert harness.group.stats.cancelled == harness.group.stats.windows == 5


def test_the_queue_limit_holds_for_all_engines_together() -> None:
    harness = PausableGroup(queue_limit=3)
    harness.gate.clear()
    known = Caller()
    try:
        for _ in range(20):
            harness.submit(caller=known)  # an admitted caller is never refused
        with pytest.raises(QueueFull, match="are waiting already"):
            harness.submit()
    finally:
        harness.gate.set()
        harness.group.close()


def test_a_drained_group_refuses_windows(harness: PausableGroup) -> None:
    assert harness.group.drain(SOON_S)
    with pytest.raises(EngineClosed):
        harness.submit()


@pytest.mark.parametrize("devices", ["x", "0;1", "cpu:1", "0,,1", "0,-1"])
def test_invalid_devices_are_refused(devices: str) -> None:
    with pytest.raises(UsageError, match="separated by commas"):
        EngineSettings(devices=devices)


def test_device_names() -> None:
    assert EngineSettings(devices="0, 1,cpu").device_names == ["cuda:0", "cuda:1", "cpu"]
