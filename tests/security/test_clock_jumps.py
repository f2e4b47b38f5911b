"""The wall clock of a server, and that of Redis, jump by an hour in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import redis

from attack_probe import wait_until
from choral.jobs import Client
from choral.jobs.redis_keys import GROUP, RedisKeys
from serve_process import running
from speech_requests import submit, transcribe, wait_for_job
from support.redis_server import RedisServer
from worker_process import running_worker

pytestmark = pytest.mark.slow
HOUR_S = 3600


@pytest.fixture
def clock(tmp_path: Path) -> Callable[[float], None]:
    """Sets the shift of the wall clock of processes that are started with `shifted(tmp_path)`."""
    file = tmp_path / "clock"
    file.write_text("0")

    def shift(seconds: float) -> None:
        new = tmp_path / "clock.new"
        new.write_text(str(seconds))
        new.replace(file)

    return shift


def shifted(tmp_path: Path) -> dict[str, str]:
    folder = Path(__file__).parent / "shifted_clock"
    return {"PYTHONPATH": str(folder), "CHORAL_TEST_CLOCK": str(tmp_path / "clock")}


def test_clock_of_a_server_jumps(
    flags: tuple[object, ...], jfk: Path, tmp_path: Path, clock: Callable[[float], None]
) -> None:
    """Jobs succeed, and those that wait for a retry, or for their webhook, do not wait for an hour longer."""
    job_flags = ("--data", tmp_path / "data", "--allowed-hosts", "127.0.0.1", "--job-retry-s", 1)
    with running(*flags, *job_flags, env=shifted(tmp_path)) as server:
        kept = [submit(server.url, jfk)]
        for shift_s in (HOUR_S, 0, -HOUR_S, 0):
            kept.append(submit(server.url, jfk))  # runs or waits while the clock jumps
            retried = submit_url(server.url)
            wait_for_job(server.url, retried, "waiting")
            clock(shift_s)
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            assert "country" in transcribe(server.url, jfk).text
            for job_id in kept:
                assert wait_for_job(server.url, job_id)["state"] == "succeeded"
            assert wait_for_job(server.url, retried)["state"] == "dead"
            shown = {job["id"] for job in httpx.get(f"{server.url}/v1/jobs").json()["data"]}
            assert shown > set(kept)
        assert "Traceback" not in server.log


def submit_url(url: str) -> str:
    """A job whose audio cannot be fetched, which is retried."""
    answer = httpx.post(f"{url}/v1/jobs", json={"url": "http://127.0.0.1:1/a.wav"}, timeout=60)
    return str(answer.json()["id"])


def test_clock_of_redis_jumps(
    redis_program: None,
    flags: tuple[object, ...],
    speech_clips: list[Path],
    tmp_path: Path,
    clock: Callable[[float], None],
) -> None:
    """All leases look an hour old at once, and another worker claims them: every job has one result."""
    env = shifted(tmp_path)
    keys = RedisKeys()
    with (
        RedisServer(tmp_path) as store,
        redis.Redis.from_url(store.url) as plain,
        running_worker(store.url, *flags, env=env),
        running_worker(store.url, *flags, env=env),
        Client(store.url) as client,
    ):
        client.wait(client.submit(speech_clips[0]))
        for shift_s in (HOUR_S, 0, -HOUR_S, 0):
            jobs = [client.submit(clip) for clip in speech_clips * 2]
            wait_until(lambda: any(record.state == "running" for record in client.show_all(jobs)))  # noqa: B023
            plain.set("test-clock", shift_s)
            clock(shift_s)
            for priority in ("interactive", "batch"):  # what XAUTOCLAIM sees after a jump
                queue = keys.queue(priority)
                for pending in plain.xpending_range(queue, GROUP, "-", "+", 100):
                    plain.xclaim(
                        queue, GROUP, pending["consumer"], 0, [pending["message_id"]], idle=HOUR_S * 1000, justid=True
                    )
            for job in jobs:
                assert client.wait(job).text
        assert client.counts().dead == 0
        assert client.counts().is_all_done
