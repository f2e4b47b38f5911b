"""Redis is killed and started again, with and without its append-only file, below a worker and a server."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest
import redis

from attack_probe import wait_until
from choral.jobs import Client
from serve_process import running
from speech_requests import submit, transcribe, wait_for_job
from support.redis_server import RedisServer
from worker_process import running_worker

pytestmark = pytest.mark.slow


def test_redis_restarts_with_its_append_only_file(
    redis_program: None, flags: tuple[object, ...], jfk: Path, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as store, running_worker(store.url, *flags), Client(store.url) as client:
        jobs = [client.submit(jfk) for _ in range(6)]
        client.wait(jobs[0])
        store.stop(signal.SIGKILL)
        time.sleep(1)
        store.start()
        wait_until(lambda: is_reachable(store))
        assert all("country" in client.wait(job).text for job in jobs)


def test_redis_restarts_empty(redis_program: None, flags: tuple[object, ...], jfk: Path, tmp_path: Path) -> None:
    """Without its file, the jobs are gone; server and worker continue with new ones."""
    settings = ("--appendonly", "no")
    with (
        RedisServer(tmp_path, *settings) as store,
        running_worker(store.url, *flags) as worker,
        running(*flags, "--redis", store.url) as server,
    ):
        lost = [submit(server.url, jfk) for _ in range(4)]
        with httpx.stream("GET", f"{server.url}/v1/jobs/{lost[-1]}/events", timeout=60) as events:
            store.stop(signal.SIGKILL)
            assert httpx.get(f"{server.url}/v1/jobs/{lost[0]}", timeout=60).status_code == 503
            assert httpx.get(f"{server.url}/health/live", timeout=5).status_code == 200
            store.start()
            for _ in events.iter_raw():  # the stream ends
                pass
        wait_until(lambda: httpx.get(f"{server.url}/v1/jobs", timeout=60).status_code == 200)
        assert httpx.get(f"{server.url}/v1/jobs/{lost[-1]}", timeout=60).status_code in (200, 404)
        assert "country" in wait_for_job(server.url, submit(server.url, jfk))["result"]["text"]
        assert "country" in transcribe(server.url, jfk).text
        assert "Traceback" not in server.log + worker.log


def is_reachable(store: RedisServer) -> bool:
    with redis.Redis.from_url(store.url) as plain:
        try:
            return bool(plain.ping())
        except redis.RedisError:
            return False
