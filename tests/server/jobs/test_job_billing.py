"""Audio usage of keys: it survives restarts and includes jobs that workers run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from choral.server.api_keys import ApiKey, hash_secret, write_keys
from job_client import submit, wait_for
from serve_process import EXACT, ServeProcess
from support.redis_server import RedisServer

ROUTE = "/v1/audio/transcriptions"
JFK_S = 11.0


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """Half a minute a day: two and a half times the clip."""
    path = tmp_path / "keys"
    write_keys(path, [ApiKey(name="ada", sha256=hash_secret("ck-ada"), audio_minutes_per_day=0.5)])
    return path


def caller(server: ServeProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": "Bearer ck-ada"})


def transcribe(http: httpx.Client, clip: Path) -> httpx.Response:
    with clip.open("rb") as file:
        return http.post(ROUTE, files={"file": file}, data={"model": "whisper-1"})


def test_usage_survives_restarts(keys_file: Path, tiny_en_pt: Path, jfk: Path, tmp_path: Path) -> None:
    flags = (
        "--model", tiny_en_pt, "--threads", 1, "--processes", 1, "--data", tmp_path / "data",
        "--api-keys-file", keys_file,
    )  # fmt: skip
    first = ServeProcess(*flags)
    with caller(first) as http:
        assert transcribe(http, jfk).status_code == 200
    time.sleep(1.0)  # what kill -9 may lose
    first.process.send_signal(signal.SIGKILL)
    first.stop()
    second = ServeProcess(*flags)
    with caller(second) as http:
        wait_for(http, submit(http, jfk), "succeeded")
    assert second.stop() == 0  # at once, and nothing is lost
    third = ServeProcess(*flags)
    try:
        with caller(third) as http:
            refused = transcribe(http, jfk)
            assert refused.status_code == 429
            assert "has used 0.4; this audio is 0.2 more" in refused.json()["error"]["message"]
            failed = wait_for(http, submit(http, jfk), "failed")
            assert "0.5 minutes of audio in 24 hours" in failed["error"]["message"]
        assert third.stop() == 0
    finally:
        third.process.kill()


@pytest.fixture
def redis(redis_program: None, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


def test_worker_jobs_are_charged_by_the_next_server(
    redis: RedisServer, keys_file: Path, tiny_en_pt: Path, jfk: Path, tmp_path: Path
) -> None:
    """The server that accepted the jobs has stopped before a worker runs them."""
    model = ("--model", tiny_en_pt, "--threads", 1, "--processes", 1)
    flags = (*model, "--redis", "env", "--job-limit", 3, "--data", tmp_path / "data", "--api-keys-file", keys_file)
    before = ServeProcess(*flags, env={"CHORAL_REDIS": redis.url})
    with caller(before) as http:
        jobs = [submit(http, jfk) for _ in range(3)]
        full = http.post("/v1/jobs", json={"url": "https://example.org/talk.mp3"})
        assert full.status_code == 503
        assert f"3 jobs are already waiting: try again in {full.headers['retry-after']} s" in full.text
    assert before.stop() == 0
    command = [
        sys.executable,
        "-m",
        "choral",
        "worker",
        "--redis",
        redis.url,
        "--burst",
        "--quiet",
        *EXACT,
        *map(str, model),
    ]
    subprocess.run(command, check=True, timeout=120)
    after = ServeProcess(*flags, env={"CHORAL_REDIS": redis.url})
    try:
        with caller(after) as http:
            for job in jobs:
                assert wait_for(http, job, "succeeded")["progress"]["duration_s"] == pytest.approx(JFK_S, abs=0.1)
            deadline_s = time.monotonic() + 20
            while (refused := http.post("/v1/jobs")).status_code != 429:  # nothing in it: a 415 until then
                assert time.monotonic() < deadline_s, refused.text
                time.sleep(0.1)
            assert "limited to 0.5 minutes of audio in 24 hours and has used 0.6" in refused.json()["error"]["message"]
        assert after.stop() == 0
    finally:
        after.process.kill()
