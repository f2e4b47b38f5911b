"""Restarts: waiting and running jobs and event streams survive them."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

import choral
from choral.server.jobs.job_table import JobTable
from job_client import joined, read_events, submit, wait_for
from serve_process import ServeProcess


def test_jobs_survive_kill_9(
    tiny_en_pt: Path, jfk: Path, speech_clips: list[Path], jfk_transcript: choral.Transcript, tmp_path: Path
) -> None:
    flags = ("--model", tiny_en_pt, "--data", tmp_path / "data", "--job-limit", 3, "--processes", 1, "--at-once", 1)
    long = joined(speech_clips, 1, tmp_path)
    server = ServeProcess(*flags)
    try:
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            jobs = [submit(http, long, temperature="0"), submit(http, jfk, priority="batch"), submit(http, jfk)]
            refused = http.post("/v1/jobs", json={"url": "https://example.org/talk.mp3"})
            assert refused.status_code == 503
            wait_s = int(refused.headers["retry-after"])
            assert 1 <= wait_s <= 120
            told = f"3 jobs are already waiting or running: try again in {wait_s} s"
            assert refused.json()["error"]["message"] == told
            seen = read_events(http, jobs[0], max_events=4)
            assert seen[-1].fields.get("state", "running") == "running"
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    finally:
        server.stop()
    again = ServeProcess(*flags)
    try:
        with httpx.Client(base_url=again.url, timeout=60) as http:
            rest = read_events(http, jobs[0], last=seen[-1].id)
            segments = [event.fields for event in (*seen, *rest) if event.name == "segment"]
            ended = [wait_for(http, job, "succeeded") for job in jobs]
            assert segments == ended[0]["result"]["segments"]
            assert [job["result"]["text"] for job in ended[1:]] == [jfk_transcript.text] * 2
            assert ended[0]["attempts"] == 2
        assert again.stop() == 0
    finally:
        again.process.kill()
    assert list((tmp_path / "data" / "audio").iterdir()) == []


def test_drain_requeues_unfinished_jobs(tiny_en_pt: Path, speech_clips: list[Path], tmp_path: Path) -> None:
    flags = ("--model", tiny_en_pt, "--data", tmp_path / "data", "--processes", 1, "--drain-s", 1)
    server = ServeProcess(*flags)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            job = submit(http, joined(speech_clips, 20, tmp_path))
            wait_for(http, job, "running")
        assert server.stop() == 0
    finally:
        server.process.kill()
    table = JobTable(tmp_path / "data")
    record = table.show(job)
    table.close()
    assert (record.state, record.attempts, record.crashes) == ("queued", 0, 0)  # it was no fault of the job
    assert (tmp_path / "data" / "audio" / job).exists()
