"""Attacks with audio, its addresses and the options of a transcription."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from attack_probe import ProbeReport
from dense_flac import flac_of_silence
from hostile_server import raw_server, tar_pit
from local_server import serve
from serve_process import ServeProcess

SPEECH, JOBS = "/v1/audio/transcriptions", "/v1/jobs"
Attacked = Callable[..., AbstractContextManager[ProbeReport]]


def refusal(answer: httpx.Response, status: int) -> str:
    """The message of the error, which is in OpenAI's shape."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 1000
    return str(error["message"])


def test_dense_audio_is_refused_at_once(server: ServeProcess, attacked: Attacked) -> None:
    """655,350 Hz in 8 channels: decoding it takes seconds of a core for every 20 kB."""
    body = flac_of_silence(655_350, "7.1", 2)

    def send(_: int) -> str:
        answer = httpx.post(
            server.url + SPEECH, data={"model": "whisper-1"}, files={"file": ("a.flac", body)}, timeout=60
        )
        return refusal(answer, 413)

    with attacked(), ThreadPoolExecutor(8) as threads:
        for message in threads.map(send, range(16)):
            assert "convert it to 48 kHz" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1," * 100_000 + "1"),
        ("temperature", "1," * 16 + "1"),
        ("clip_timestamps", ",".join(str(i / 1000) for i in range(29_920))),
        ("clip_timestamps", "0,1e308"),
        ("suppress_tokens", "1," * 10_000 + "1"),
        ("suppress_tokens", "9" * 401),
        ("seed", "9" * 401),
        ("seed", "9" * 5_000),
        ("initial_prompt", "a" * 100_000),
        ("hotwords", "a " * 10_000),
        ("append_punctuations", "." * 10_000),
        ("language", "e" * 10_000),
    ],
    ids=range(12),
)
def test_long_options_are_refused(http: httpx.Client, attacked: Attacked, jfk: Path, name: str, value: str) -> None:
    with attacked(good="none"):
        answer = http.post(JOBS, data={name: value}, files={"file": ("a.wav", jfk.read_bytes())})
        assert name in refusal(answer, 400)
        assert answer.elapsed.total_seconds() < 5


def test_lone_surrogates_are_refused(http: httpx.Client) -> None:
    body = b'{"url": "http://127.0.0.1:1/a.wav", "initial_prompt": "a\\ud800b"}'
    refusal(http.post(JOBS, content=body, headers={"content-type": "application/json"}), 400)


def test_short_audio_cannot_ask_for_long_work(server: ServeProcess, http: httpx.Client, attacked: Attacked) -> None:
    """Half a second of noise whose fallback never succeeds, as often as the options allow."""
    noise = np.random.default_rng(0).normal(0, 3000, 8_000).astype("<i2").tobytes()
    wav = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\xff\xff\xff\xff" + noise
    options = {"temperature": ",".join(["1"] * 16), "compression_ratio_threshold": "0", "logprob_threshold": "0"}
    options |= {"no_speech_threshold": "2", "best_of": "16", "max_tokens": "4"}
    with attacked():
        ids = [http.post(JOBS, data=options, files={"file": ("a.wav", wav)}).json()["id"] for _ in range(2)]
        jobs = [wait_for(http, job_id) for job_id in ids]
    for job in jobs:
        assert job["state"] == "succeeded", job["error"]
        assert any("more decoding attempts" in warning for warning in job["result"]["warnings"]), job


def test_many_clips_in_short_audio(http: httpx.Client, attacked: Attacked, jfk: Path) -> None:
    clips = ",".join(str(i / 1000) for i in range(10_000))
    with attacked():
        for mode in ("batched", "sequential"):
            data = {"clip_timestamps": clips, "mode": mode}
            answer = http.post(JOBS, data=data, files={"file": ("a.wav", jfk.read_bytes())})
            job = wait_for(http, answer.json()["id"])
            assert job["state"] == "failed", job
            assert "join neighbouring clips" in job["error"]["message"]


def test_clips_do_not_cover_what_lies_between_them(http: httpx.Client, attacked: Attacked, jfk: Path) -> None:
    """The speech from 3 s to 8.2 s is "ask not what your country can do for you"."""
    with attacked():
        data = {"clip_timestamps": "0,3,8.2,11", "mode": "batched"}
        answer = http.post(JOBS, data=data, files={"file": ("a.wav", jfk.read_bytes())})
        text = wait_for(http, answer.json()["id"])["result"]["text"].lower()
    assert text.split()[:2] == ["and", "so"]
    assert text.count("country") == 1
    assert " not " not in text


def wait_for(http: httpx.Client, job_id: str, limit_s: float = 120) -> dict[str, Any]:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        job: dict[str, Any] = http.get(f"{JOBS}/{job_id}").json()
        if job["state"] not in ("queued", "running", "retrying"):
            return job
        time.sleep(0.1)
    raise TimeoutError(job)


@pytest.mark.parametrize("n_digits", [400, 5_000])
def test_content_length_of_many_digits(http: httpx.Client, attacked: Attacked, n_digits: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * n_digits + b"\r\n\r\n"
    with raw_server(lambda connection: connection.sendall(head)) as address, attacked(good="none"):
        answer = http.post(SPEECH, data={"model": "whisper-1", "url": f"{address}/a.wav"})
        assert f"declares a size of {n_digits:,} digits" in refusal(answer, 424)


def test_trickling_addresses_delay_nothing_else(server: ServeProcess, attacked: Attacked, jfk: Path) -> None:
    def ask(url: str) -> int:
        answer = httpx.post(server.url + SPEECH, data={"model": "whisper-1", "url": url}, timeout=120)
        return answer.status_code

    with attacked(), serve() as good, ThreadPoolExecutor(41) as threads:
        with tar_pit() as slow:
            attacks = [threads.submit(ask, f"{slow}/a.wav") for _ in range(40)]
            time.sleep(1)
            url = good.add("/good.wav", jfk.read_bytes()).replace("127.0.0.1", "localhost")  # another host
            start_s = time.monotonic()
            assert ask(url) == 200
            assert time.monotonic() - start_s < 20
            assert not any(attack.done() for attack in attacks)
        assert all(attack.result(60) >= 400 for attack in attacks)
