"""Attacks through jobs on a server that runs them itself: addresses, long options, slow downloads, old records.

The server starts with the jobs of an earlier version: one whose callback it accepted and must not have, and one with an
option that this version does not know.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from attack_probe import ProbeReport, under_attack
from choral.jobs.request import AudioRef, JobRequest
from choral.options import MAX_CLIP_TIMES, TranscribeOptions
from choral.server.jobs.job_table import JobTable
from hostile_server import tar_pit
from serve_process import ServeProcess, running
from webhook_receiver import receive_webhooks

BAD_CALLBACK = "http://127.0.0.1:99999999999999999999/"
LIMIT_S = 60.0
Attacked = Callable[..., AbstractContextManager[ProbeReport]]


def leave_old_jobs(folder: Path) -> None:
    table = JobTable(folder)
    for job_id, callback in (("overflow", BAD_CALLBACK), ("unknown", None)):
        audio = AudioRef("path", "/nowhere.wav", "nowhere.wav")
        table.insert(JobRequest(id=job_id, audio=audio, options=TranscribeOptions(), callback=callback), 10)
    fields = json.loads(JobRequest(id="unknown", audio=audio, options=TranscribeOptions()).to_json())
    fields["options"]["dialect"] = "scots"
    table._file.write("UPDATE jobs SET request=? WHERE id='unknown'", (json.dumps(fields),))
    table.close()


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("data")
    leave_old_jobs(folder)
    with running(
        "--model", tiny_en_pt, "--data", folder, "--allowed-hosts", "127.0.0.1,localhost", "--processes", 1,
        "--threads", 1, "--job-retry-s", 0.2,
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def attacked(server: ServeProcess, jfk: Path) -> Attacked:
    return lambda **settings: under_attack(server, jfk, good="job", **settings)


def wait_for(http: httpx.Client, job_id: str, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_done(job := http.get(f"/v1/jobs/{job_id}").json()):
        assert time.monotonic() < deadline_s, job
        time.sleep(0.05)
    return dict(job)


def test_jobs_of_another_version_fail_alone(server: ServeProcess, http: httpx.Client, attacked: Attacked) -> None:
    with attacked():
        job = wait_for(http, "unknown", lambda job: job["state"] == "failed")
        assert job["error"]["message"].startswith("unknown option 'dialect'")
        job = wait_for(http, "overflow", lambda job: job["webhook"] is not None)
        assert job["state"] == "dead"  # its audio is gone
        with receive_webhooks() as receiver:  # webhooks go on
            assert http.post("/v1/jobs", files={"file": b"x"}, data={"callback": receiver.url}).status_code == 202
            deadline_s = time.monotonic() + LIMIT_S
            while not receiver.received:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
    assert http.get("/health/ready").status_code == 200
    assert "has stopped" not in server.log


@pytest.mark.parametrize("field", ["callback", "url"])
@pytest.mark.parametrize(
    "address",
    [
        BAD_CALLBACK,
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:0/",
        "http://a..b/",
        f"http://{'a' * 300}.example/",
        "http://127.0.0.1/" + "a" * 10_000,
        "http://127.0.0.1/\r\nX: y",
        "http://[::1",
    ],
)
def test_addresses_are_validated_at_submit(http: httpx.Client, field: str, address: str) -> None:
    fields = {"url": "http://127.0.0.1:1/a.wav", field: address}
    for response in (http.post("/v1/jobs", json=fields), http.post("/v1/jobs", data=fields, files={"none": b""})):
        assert response.status_code == 400, response.text
    error = http.post("/v1/jobs", json=fields).json()["error"]
    assert (error["param"], error["code"]) == (field, "invalid_value")


def test_long_options_are_refused_at_once(http: httpx.Client, jfk: Path, attacked: Attacked) -> None:
    audio = jfk.read_bytes()
    fields = [
        {"temperature": ",".join(["1"] * 100_000), "compression_ratio_threshold": "0"},
        {"temperature": ",".join(["x"] * 100_000)},
        {"clip_timestamps": ",".join(map(str, range(29_920)))},
        {"suppress_tokens": ",".join(["9"] * 100_000)},
        {"hotwords": "x" * 200_000},
        {"initial_prompt": "x" * 200_000},
        {"language": "x" * 200_000},
        {"prepend_punctuations": "x" * 200_000},
    ]
    with attacked():
        for each in fields * 5:
            response = http.post("/v1/jobs", files={"file": audio}, data=each)
            assert response.status_code == 400, response.text[:300]
            assert response.json()["error"]["param"] == next(iter(each))
        for body in ({f"a{i}": 1 for i in range(18_000)}, {"temperature": ["x"] * 40_000}, {"clip_timestamps": [[]]}):
            assert http.post("/v1/jobs", json={"url": "http://127.0.0.1:1/", **body}).status_code == 400


def test_listing_stays_fast(http: httpx.Client, jfk: Path, attacked: Attacked) -> None:
    """Jobs with the longest options that are accepted; clips after the end of the audio cost the engine nothing."""
    clips = ",".join(str(1000 + number) for number in range(MAX_CLIP_TIMES))
    audio = jfk.read_bytes()[:2000]  # fails at once
    with attacked():
        jobs = []
        for _ in range(40):
            response = http.post("/v1/jobs", files={"file": audio}, data={"clip_timestamps": clips})
            assert response.status_code == 202, response.text[:300]
            jobs.append(response.json()["id"])
        started_s = time.monotonic()
        response = http.get("/v1/jobs?limit=1000")
        assert time.monotonic() - started_s < 2.0
        assert len(response.content) < 100_000
        listed = {job["id"]: job["options"] for job in response.json()["data"]}
        assert all("clip_timestamps" not in listed[job] for job in jobs)
        assert len(http.get(f"/v1/jobs/{jobs[0]}").json()["options"]["clip_timestamps"]) == MAX_CLIP_TIMES


def test_slow_downloads_do_not_delay_other_jobs(http: httpx.Client, attacked: Attacked) -> None:
    with tar_pit() as address:
        jobs = [http.post("/v1/jobs", json={"url": f"{address}/{number}.wav"}).json()["id"] for number in range(40)]
        try:
            with attacked():
                other = http.post("/v1/jobs", json={"url": "http://localhost:1/a.wav"}).json()["id"]
                wait_for(http, other, lambda job: job["attempts"] > 0)
                states = [http.get(f"/v1/jobs/{job}").json()["state"] for job in jobs]
                assert set(states) == {"queued", "running"}
        finally:
            for job in jobs:
                assert http.delete(f"/v1/jobs/{job}").status_code == 200


def test_callbacks_that_do_not_answer_delay_no_other(http: httpx.Client, attacked: Attacked) -> None:
    with tar_pit() as address, receive_webhooks() as receiver, attacked():
        for number in range(32):
            fields = {"callback": f"{address}/{number}"}
            assert http.post("/v1/jobs", files={"file": b"x"}, data=fields).status_code == 202
        good = receiver.url.replace("127.0.0.1", "localhost")
        response = http.post("/v1/jobs", files={"file": b"x"}, data={"callback": good})
        wait_for(http, response.json()["id"], lambda job: job["state"] == "failed")
        ended_s = time.monotonic()
        while not receiver.received:
            assert time.monotonic() - ended_s < 5.0
            time.sleep(0.05)
