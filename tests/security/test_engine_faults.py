"""A device that fails at everything, and an engine that has ended: the server says so, keeps its jobs, and is idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from attack_probe import under_attack, wait_until
from serve_process import ServeProcess, running
from speech_requests import submit, transcribe, wait_for_job

N_REQUESTS = 12  # more than fail before the device counts as broken
IDLE_S = 2.0


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Breaks and repairs the devices of servers that this test starts: see `faulty_device`."""
    file = tmp_path / "fault"
    file.write_text("")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "faulty_device"))
    monkeypatch.setenv("CHORAL_TEST_DEVICE", str(file))
    return file.write_text


def test_broken_devices_and_ended_engines(
    flags: tuple[object, ...], jfk: Path, tmp_path: Path, fault: Callable[[str], object]
) -> None:
    with running(*flags, "--data", tmp_path / "data") as server:
        with under_attack(server, jfk, good="none"):
            fault("fail")
            for _ in range(N_REQUESTS):
                assert transcribe(server.url, jfk).status_code >= 500
            assert "illegal memory access" in unready_reason(server)
            job_id = submit(server.url, jfk)
            time.sleep(IDLE_S)
            assert state_and_attempts(server, job_id) == ("queued", 0)
            fault("")
            wait_until(lambda: not unready_reason(server))
        assert "country" in transcribe(server.url, jfk).text
        assert wait_for_job(server.url, job_id)["state"] == "succeeded"

        with under_attack(server, jfk, good="none"):
            fault("end")
            assert transcribe(server.url, jfk).status_code == 503
            assert "closed" in unready_reason(server)
            job_id = submit(server.url, jfk)
            n_tries = server.log.count("put back")
            assert cpu_share(server, IDLE_S) < 0.5
            assert server.log.count("put back") <= n_tries + 2
            assert state_and_attempts(server, job_id) == ("queued", 0)
        assert "jobs stay queued until the engine works" in server.log
    fault("")
    with running(*flags, "--data", tmp_path / "data") as server:
        assert wait_for_job(server.url, job_id)["state"] == "succeeded"


def unready_reason(server: ServeProcess) -> str:
    """Empty if the server is ready."""
    answer = httpx.get(f"{server.url}/health/ready", timeout=10)
    return str(answer.json()["reason"]) if answer.status_code == 503 else ""


def state_and_attempts(server: ServeProcess, job_id: str) -> tuple[str, int]:
    job = httpx.get(f"{server.url}/v1/jobs/{job_id}", timeout=30).json()
    return str(job["state"]), int(job["attempts"])


def cpu_share(server: ServeProcess, duration_s: float) -> float:
    """Of one core, that the server's process uses."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    time.sleep(duration_s)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / duration_s
