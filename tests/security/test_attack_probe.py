"""The probe notices a server that stands still."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from attack_probe import under_attack
from serve_process import ServeProcess


def test_probe_notices_a_blocked_server(server: ServeProcess, jfk: Path) -> None:
    def stop_for_a_second() -> None:
        with under_attack(server, jfk, good="none"):
            time.sleep(0.3)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(0.5)

    with pytest.raises(AssertionError, match="/health/live took"):
        stop_for_a_second()
    with under_attack(server, jfk) as report:
        time.sleep(0.5)
    assert report.n_live > 1
    assert report.good_s
