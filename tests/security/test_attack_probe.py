"""The probe notices a server that stands still, and one whose event loop computes, also on a busy machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from attack_probe import under_attack
from serve_process import ServeProcess, running


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `faulty_device`."""
    file = tmp_path_factory.mktemp("fault") / "fault"
    file.write_text("")
    return file


@pytest.fixture(scope="module")
def server(flags: tuple[object, ...], fault: Path) -> Iterator[ServeProcess]:
    env = {"PYTHONPATH": str(Path(__file__).parent / "faulty_device"), "CHORAL_TEST_DEVICE": str(fault)}
    with running(*flags, env=env) as started:
        yield started


def test_probe_notices_a_blocked_server(server: ServeProcess, jfk: Path, fault: Path) -> None:
    def stop_for_a_second() -> None:
        with under_attack(server, jfk, good="none"):
            time.sleep(0.3)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(0.5)

    def compute_in_the_event_loop() -> None:
        with under_attack(server, jfk, good="none"):
            fault.write_text("spin")
            for _ in range(4):
                httpx.get(f"{server.url}/health/ready", timeout=60)
            fault.write_text("")
            time.sleep(0.2)

    for attack in (stop_for_a_second, compute_in_the_event_loop):
        with pytest.raises(AssertionError, match="/health/live took"):
            attack()
    with under_attack(server, jfk) as report:
        time.sleep(0.5)
    assert report.n_live > 1
    assert report.good_s
