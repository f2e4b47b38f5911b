"""Jobs that run on a worker over Redis, submitted with different keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import choral
from choral.server.api_keys import ApiKey, hash_secret, write_keys
from job_client import read_events, submit, wait_for
from serve_process import EXACT, ServeProcess
from support.redis_server import RedisServer


@pytest.fixture
def redis(redis_program: None, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


def test_worker_runs_jobs_and_keys_separate_owners(
    redis: RedisServer, tiny_en_pt: Path, jfk: Path, jfk_transcript: choral.Transcript, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [ApiKey(name=name, sha256=hash_secret(f"ck-{name}")) for name in ("ada", "bob")])
    model = ("--model", tiny_en_pt, "--threads", 1, "--processes", 1)
    server = ServeProcess(*model, "--redis", redis.url, "--api-keys-file", tmp_path / "keys")
    worker = subprocess.Popen(
        [sys.executable, "-m", "choral", "worker", "--redis", redis.url, *EXACT, *map(str, model), "--quiet"]
    )
    try:
        with as_caller(server, "ada") as ada, as_caller(server, "bob") as bob, as_caller(server, "eve") as eve:
            job_id = submit(ada, jfk, word_timestamps="true")
            events = read_events(ada, job_id)
            result = wait_for(ada, job_id, "succeeded")["result"]
            assert result["text"] == jfk_transcript.text
            assert [event.fields for event in events if event.name == "segment"] == result["segments"]
            assert events[-1].name == "end"
            assert events[-1].fields["text"] == jfk_transcript.text.strip()
            assert [job["id"] for job in ada.get("/v1/jobs").json()["data"]] == [job_id]
            assert bob.get("/v1/jobs").json()["data"] == []
            for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events"):
                assert (bob.get(path).status_code, eve.get(path).status_code) == (404, 401)
            assert bob.delete(f"/v1/jobs/{job_id}").status_code == 404
            assert ada.delete(f"/v1/jobs/{job_id}").json()["deleted"] is True
            assert ada.get(f"/v1/jobs/{job_id}").status_code == 404
            assert eve.get("/").status_code == 200
        assert server.stop() == 0
    finally:
        server.process.kill()
        worker.terminate()
        worker.wait(60)


def as_caller(server: ServeProcess, name: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": f"Bearer ck-{name}"})
