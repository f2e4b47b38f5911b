"""`choral submit`, `choral jobs` and `choral worker` as a user runs them: real processes, a real Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from choral.jobs import Client
from choral.speakers.networks import SpeakerNetworks
from support.redis_server import RedisServer, free_port

COMMAND = [sys.executable, "-m", "choral.cli.main"]
PASSWORD = "do-not-show-me"
Choral = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def choral(redis_url: str, tmp_path: Path) -> Choral:
    def run(*arguments: object, stdin: bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            input=stdin,
            cwd=tmp_path,
            env={**os.environ, "CHORAL_REDIS": redis_url, **env},
            timeout=120,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def worker(redis_url: str, tiny_en_ct2: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that runs until it is stopped and logs to worker.log."""
    command = [*COMMAND, "worker", "--model", str(tiny_en_ct2), "--engine", "ctranslate2", "--threads", "1"]
    command += ["--roots", str(tmp_path), "--log-format", "json", "--processes", "1"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "CHORAL_REDIS": redis_url}, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_submit_with_wait_prints_what_transcribe_prints(
    choral: Choral,
    worker: subprocess.Popen[bytes],
    speech_clips: list[Path],
    tiny_en_ct2: Path,
    networks: SpeakerNetworks,
    tmp_path: Path,
) -> None:
    own = ("--model", tiny_en_ct2, "--engine", "ctranslate2", "--threads", 1)
    expected = choral("transcribe", *speech_clips[:2], *own, "--format", "srt", "--output-dir", "expected")
    assert expected.returncode == 0, expected.stderr
    bad = tmp_path / "bad.mp3"
    bad.write_bytes(b"this is no audio")
    done = choral("submit", *speech_clips[:2], bad, "--wait", "--format", "srt", "--output-dir", "found")
    assert done.returncode == 8, done.stderr
    assert "is not audio that can be read" in done.stderr
    assert done.stdout == ""
    for clip in speech_clips[:2]:
        name = f"{clip.stem}.srt"
        assert (tmp_path / "found" / name).read_text() == (tmp_path / "expected" / name).read_text()
    diarized = ("--diarize", "--speakers", "1-2")
    text = choral("submit", "-", "--wait", *diarized, stdin=speech_clips[0].read_bytes())
    assert (text.returncode, text.stdout) == (0, choral("transcribe", speech_clips[0], *own, *diarized).stdout)
    assert text.stdout.startswith("Speaker 1: ")
    (tmp_path / "known.txt").write_text(text.stdout.removeprefix("Speaker 1: "))
    aligned = choral("submit", speech_clips[0], "--align", "known.txt", "--wait", "--format", "srt")
    assert aligned.returncode == 0, aligned.stderr
    assert aligned.stdout == choral("align", speech_clips[0], "known.txt", *own).stdout
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    lines = [json.loads(line) for line in (tmp_path / "worker.log").read_text().splitlines()]
    assert any(line["message"].startswith("batch 1: size ") for line in lines)
    assert [line["level"] for line in lines if "job" in line] == ["error"]


def test_ids_states_and_results_of_submitted_jobs(choral: Choral, speech_clips: list[Path], tiny_en_ct2: Path) -> None:
    submitted = choral("submit", speech_clips[0], "--language", "en", "--priority", "batch", "--job-id", "mine")
    assert (submitted.returncode, submitted.stdout) == (0, "mine\n")
    assert "mine  queued  batch" in choral("jobs", "list").stdout.replace("   ", "  ")
    early = choral("jobs", "result", "mine")
    assert (early.returncode, early.stdout) == (8, "")
    assert "is queued: wait for it" in early.stderr
    burst = choral("worker", "--burst", "--model", tiny_en_ct2, "--engine", "ctranslate2", "--threads", 1, "--quiet")
    assert (burst.returncode, burst.stdout, burst.stderr) == (0, "", "")
    shown = choral("jobs", "show", "mine").stdout
    for line in ("state ", "succeeded", "language='en'", "queued ", "fetch ", "decode ", "engine "):
        assert line in shown
    assert json.loads(choral("jobs", "show", "mine", "--json").stdout)["state"] == "succeeded"
    assert "Dashwood" in choral("jobs", "result", "mine").stdout
    assert choral("jobs", "result", "mine", "--format", "vtt").stdout.startswith("WEBVTT")
    assert choral("jobs", "cancel", "mine").stdout == "mine is succeeded\n"
    retried = choral("jobs", "retry", "mine", "other")
    assert retried.returncode == 8
    assert "job mine is succeeded" in retried.stderr
    assert "job other does not exist" in retried.stderr
    assert choral("jobs", "dead").stderr == "the dead-letter list is empty\n"
    top = choral("jobs", "top").stdout
    assert "0 interactive, 0 batch; 0 with workers" in top
    assert "no workers" in top


def test_cancel_and_retry(choral: Choral, redis_url: str) -> None:
    with Client(redis_url) as client:
        job_id = client.submit("http://example.org/talk.mp3")
    assert choral("jobs", "cancel", job_id).stdout == f"{job_id} is cancelled\n"
    assert choral("jobs", "retry", job_id).stdout == f"{job_id} is queued again\n"


def test_jobs_of_a_killed_worker_are_claimed(
    choral: Choral, worker: subprocess.Popen[bytes], redis_url: str, speech_clips: list[Path], tiny_en_ct2: Path
) -> None:
    with Client(redis_url) as client:
        ids = [client.submit(clip, temperature=0) for clip in speech_clips]
        while not any(client.show(job_id).state == "running" for job_id in ids):
            time.sleep(0.02)
        worker.kill()
        worker.wait()
        done = choral(
            "worker", "--burst", "--model", tiny_en_ct2, "--engine", "ctranslate2", "--claim-after-s", 2, "--threads", 1
        )
        assert done.returncode == 0
        assert "claimed from a worker that is gone" in done.stderr
        records = client.show_all(ids)
        assert {record.state for record in records} == {"succeeded"}
        assert max(record.crashes for record in records) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("submit", "missing.mp3"), 3, "no such file"),
        (("submit", "a.wav", "--format", "srt"), 2, "give --wait"),
        (("submit", "a.wav", "b.wav", "--job-id", "x"), 2, "single input"),
        (("submit", "a.wav", "b.wav", "--align", "a.wav"), 2, "--align is for a single input"),
        (("submit", "a.wav", "--beam-sise", "2"), 2, "did you mean --beam-size"),
        (("worker", "--batch-size", "-1"), 2, "batch_size"),
        (("worker", "--roots", "/no/such/folder"), 2, "not a readable folder"),
        (("worker", "--allowed-hosts", "*"), 2, "allowed host"),
        (("worker", "--webhook-secret-file", "/no/file"), 2, "secret"),
        (("jobs", "show"), 2, "ID"),
        (("jobs", "list", "--redis", "localhost"), 2, "redis://"),
    ],
)
def test_invalid_commands_are_reported(
    choral: Choral, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"RIFF")
    done = choral(*arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_the_redis_password_is_never_printed(redis_program: None, choral: Choral, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with RedisServer(tmp_path / "data", "--requirepass", PASSWORD) as server:
        right = f"redis://:{PASSWORD}@127.0.0.1:{server.port}"
        assert PASSWORD not in choral("jobs", "top", CHORAL_REDIS=right).stdout
        wrong = f"redis://:{PASSWORD}2@127.0.0.1:{server.port}"
        nowhere = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}"
        for url in (wrong, nowhere):
            for command in (("jobs", "list"), ("worker",), ("submit", "http://example.org/a.mp3")):
                done = choral(*command, "--redis", url)
                assert done.returncode == 9
                assert PASSWORD not in done.stdout + done.stderr


def test_metrics_are_served(redis_url: str, tiny_en_ct2: Path, tmp_path: Path, choral: Choral) -> None:
    from urllib.request import urlopen

    port = free_port()
    command = [*COMMAND, "worker", "--model", str(tiny_en_ct2), "--engine", "ctranslate2", "--metrics-port", str(port)]
    process = subprocess.Popen([*command, "--quiet"], env={**os.environ, "CHORAL_REDIS": redis_url})
    try:
        text = ""
        deadline_s = time.monotonic() + 60
        while "choral_engine_busy_share" not in text and time.monotonic() < deadline_s:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
            time.sleep(0.1)
        assert "choral_prep_backlog" in text
        second = choral("worker", "--model", tiny_en_ct2, "--engine", "ctranslate2", "--metrics-port", port)
        assert (second.returncode, "choose another --metrics-port" in second.stderr) == (2, True)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
