"""Faults of the machine: signals under load, Redis restarts, clock jumps, full disks, killed processes, long files.

Each test starts what it breaks. Afterwards every request and job has ended with a result or a clear error, and good
requests succeed.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import psutil
import pytest
import redis
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from attack_probe import memory_bytes, under_attack, wait_until
from choral.bench.clips import read_samples
from choral.jobs import Client
from choral.jobs.redis_keys import GROUP, RedisKeys
from serve_process import ServeProcess, running
from support.redis_server import RedisServer
from worker_process import running_worker

ROUTE = "/v1/audio/transcriptions"
HOUR_S, DRAIN_S = 3600, 4
ENDED = ("succeeded", "failed", "dead", "cancelled")


@pytest.fixture(scope="module")
def flags(tiny_en_pt: Path) -> tuple[object, ...]:
    return ("--model", tiny_en_pt, "--threads", 1, "--processes", 1)


def transcribe(url: str, speech: Path, **fields: str) -> httpx.Response:
    with speech.open("rb") as file:
        data = {"model": "whisper-1", **fields}
        return httpx.post(url + ROUTE, files={"file": (speech.name, file)}, data=data, timeout=120)


def submit(url: str, speech: Path, **fields: str) -> str:
    with speech.open("rb") as file:
        answer = httpx.post(f"{url}/v1/jobs", files={"file": (speech.name, file)}, data=fields, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_for_job(url: str, job_id: str, limit_s: float = 90.0) -> dict[str, Any]:
    job: dict[str, Any] = {}

    def has_ended() -> bool:
        job.update(httpx.get(f"{url}/v1/jobs/{job_id}", timeout=30).json())
        return job["state"] in ENDED

    wait_until(has_ended, limit_s)
    return job


# --- SIGTERM under full load ---


def test_sigterm_under_full_load(flags: tuple[object, ...], jfk: Path, tmp_path: Path) -> None:
    """Requests finish or get a 503, uploads and sessions are ended, jobs are kept, and the exit code is 0."""
    server = ServeProcess(*flags, "--data", tmp_path, "--drain-s", DRAIN_S, "--at-once", 1, "--upload-stall-s", 60)
    try:
        server.wait_ready()
        with ThreadPoolExecutor(24) as pool:
            requests = [pool.submit(request_until_refused, server.url, jfk) for _ in range(16)]
            streams = [pool.submit(stream, server.url, jfk) for _ in range(2)]
            uploads = [pool.submit(stalled_upload, server.url) for _ in range(4)]
            sessions = [pool.submit(open_session, server.url) for _ in range(2)]
            jobs = [submit(server.url, jfk) for _ in range(3)]
            wait_until(lambda: server.metric("choral_http_requests_open") >= 20)
            wait_until(lambda: any(each.done() for each in streams) or server.metric("choral_audio_seconds_total") > 0)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.process.poll() is not None, limit_s=2 * DRAIN_S + 20)
            answers = Counter(answer for each in requests for answer in each.result())
            assert answers.keys() <= {"200", "queue_full", "engine_closed", "shutting_down", "no connection"}, answers
            assert answers["200"] > 0, answers
            assert answers["shutting_down"] > 0, answers  # those whose time was over
            assert {each.result() for each in streams} <= {"200", "shutting_down", "cut off"}
            assert {each.result() for each in uploads} <= {b"503", b""}
            assert {each.result() for each in sessions} <= {1000, 1001, 1012}
        assert server.process.returncode == 0
        assert "Traceback" not in server.log
    finally:
        server.process.kill()
        server.stop()
    with running(*flags, "--data", tmp_path) as again:
        for job_id in jobs:
            assert "country" in wait_for_job(again.url, job_id)["result"]["text"]


def request_until_refused(url: str, speech: Path) -> list[str]:
    """The responses, as 200 or the code of the error."""
    answers = ["200"]
    while answers[-1] == "200":
        try:
            answer = transcribe(url, speech)
        except httpx.TransportError:
            answers.append("no connection")
            continue
        if answer.status_code == 200:
            assert "country" in answer.json()["text"]
            answers.append("200")
        else:
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) > 0
            answers.append(answer.json()["error"]["code"])
    return answers[1:]


def stream(url: str, speech: Path) -> str:
    try:
        answer = transcribe(url, speech, stream="true")
    except httpx.TransportError:
        return "cut off"
    if answer.status_code == 200:
        return "200" if "transcript.text.done" in answer.text else "cut off"
    return str(answer.json()["error"]["code"])


def stalled_upload(url: str) -> bytes:
    """The status that a client gets which does not finish its upload."""
    host, port = url.removeprefix("http://").split(":")
    form = "Content-Length: 9999\r\nContent-Type: multipart/form-data; boundary=x"
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\n{form}\r\n\r\n--x\r\n".encode())
        return connection.recv(4096)[9:12]


def open_session(url: str) -> int:
    """The code with which the server closes an idle session."""
    with connect(f"{url.replace('http', 'ws')}/v1/realtime?intent=transcription") as connection:
        try:
            while True:
                connection.recv(90)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 0


# --- Redis restarts ---


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


# --- a wall clock that jumps ---


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Callable[[float], None]]:
    """Sets the shift of the wall clock of processes that are started with `shifted(tmp_path)`."""
    file = tmp_path / "clock"
    file.write_text("0")

    def shift(seconds: float) -> None:
        new = tmp_path / "clock.new"
        new.write_text(str(seconds))
        new.replace(file)

    return shift  # type: ignore[return-value]


def shifted(tmp_path: Path) -> dict[str, str]:
    folder = Path(__file__).parent / "shifted_clock"
    return {"PYTHONPATH": str(folder), "CHORAL_TEST_CLOCK": str(tmp_path / "clock")}


def test_clock_of_a_server_jumps(
    flags: tuple[object, ...], jfk: Path, tmp_path: Path, clock: Callable[[float], None]
) -> None:
    job_flags = ("--data", tmp_path / "data", "--allowed-hosts", "127.0.0.1")
    with running(*flags, *job_flags, env=shifted(tmp_path)) as server:
        kept = [submit(server.url, jfk)]
        for shift_s in (HOUR_S, 0, -HOUR_S, 0):
            kept.append(submit(server.url, jfk))  # runs or waits while the clock jumps
            clock(shift_s)
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            assert "country" in transcribe(server.url, jfk).text
            for job_id in kept:
                assert wait_for_job(server.url, job_id)["state"] == "succeeded"
        shown = httpx.get(f"{server.url}/v1/jobs").json()["data"]
        assert {job["id"] for job in shown} == set(kept)
        assert "Traceback" not in server.log


@pytest.mark.slow
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


# --- a disk that fills and empties ---


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            for size_bytes in (2**20, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size_bytes))
                except OSError:
                    continue
        yield
    finally:
        ballast.unlink()


def test_disk_fills_and_empties(flags: tuple[object, ...], jfk: Path, small_disk: Path) -> None:
    temporary = small_disk / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    with running(*flags, "--data", small_disk / "data", env=env) as server:
        for _ in range(2):
            before = submit(server.url, jfk)
            with filled(small_disk):
                for path in (ROUTE, "/v1/jobs"):
                    data = {"model": "whisper-1"} if path == ROUTE else {}
                    answer = httpx.post(server.url + path, files={"file": bytes(5 * 2**20)}, data=data, timeout=60)
                    assert answer.status_code == 507, answer.text
                    assert answer.json()["error"]["code"]
                assert httpx.get(f"{server.url}/health/live", timeout=5).status_code == 200
                assert httpx.get(f"{server.url}/v1/jobs", timeout=30).status_code == 200
                time.sleep(1)
            assert "country" in transcribe(server.url, jfk).text
            assert "country" in wait_for_job(server.url, submit(server.url, jfk))["result"]["text"]
            assert wait_for_job(server.url, before)["state"] in ("succeeded", "failed")
        assert not [path for path in temporary.rglob("*") if path.is_file()]


# --- killed decoders ---


def test_decoder_is_killed_at_every_stage(flags: tuple[object, ...], jfk: Path) -> None:
    """Idle, before, while and after it decodes: each request succeeds, because a killed process is replaced once."""
    with running(*flags) as server:
        for delay_s in (None, 0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3):
            with ThreadPoolExecutor(1) as pool:
                if delay_s is None:
                    kill_decoders(server)
                answer = pool.submit(transcribe, server.url, jfk)
                if delay_s is not None:
                    time.sleep(delay_s)
                    kill_decoders(server)
                assert "country" in answer.result().text, delay_s
        wait_until(lambda: transcribe(server.url, jfk).status_code == 200)
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_decoders_are_killed_for_a_minute(flags: tuple[object, ...], jfk: Path) -> None:
    """A file whose decoder is killed twice is refused as damaged; nothing else may happen."""
    with running(*flags) as server, ThreadPoolExecutor(4) as pool:
        is_over = threading.Event()

        def send() -> Counter[int]:
            statuses: Counter[int] = Counter()
            while not is_over.is_set():
                statuses[transcribe(server.url, jfk).status_code] += 1
            return statuses

        senders = [pool.submit(send) for _ in range(4)]
        draw = random.Random(0)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            time.sleep(draw.uniform(0, 1))
            kill_decoders(server)
        is_over.set()
        statuses = sum((sender.result() for sender in senders), Counter[int]())
        assert statuses.keys() <= {200, 400}, statuses
        assert statuses[200] > 10 * statuses[400], statuses
        assert "country" in transcribe(server.url, jfk).text
        assert "Traceback" not in server.log


def kill_decoders(server: ServeProcess) -> None:
    for child in psutil.Process(server.process.pid).children():
        child.kill()


# --- 24 hours in one file ---


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_day_of_audio_in_one_file(flags: tuple[object, ...], jfk: Path, tmp_path: Path) -> None:
    """Speech at the start, at noon and at the end, silence between: every sentence is found, in bounded memory."""
    file = tmp_path / "day.flac"
    starts_s = (0, 12 * HOUR_S, 24 * HOUR_S - 60)
    write_day(file, read_samples(jfk), starts_s)
    assert file.stat().st_size < 64 * 2**20
    limits = ("--max-audio-s", 25 * HOUR_S, "--data", tmp_path / "data")
    with running(*flags, *limits, env={"TMPDIR": str(tmp_path)}) as server:
        transcribe(server.url, jfk)
        before_bytes = memory_bytes(server)
        with under_attack(server, jfk, good_within_s=60):
            job_id = submit(server.url, file, mode="batched", vad="true")
            job = wait_for_job(server.url, job_id, limit_s=3000)
        assert job["state"] == "succeeded", job
        assert job["duration_s"] == pytest.approx(24 * HOUR_S, abs=1)
        spoken = [segment for segment in job["result"]["segments"] if "country" in segment["text"]]
        for start_s in starts_s:
            assert any(start_s - 1 <= segment["start"] <= start_s + 12 for segment in spoken), (start_s, spoken)
        assert memory_bytes(server) - before_bytes < 500 * 2**20


def write_day(file: Path, speech: np.ndarray[Any, np.dtype[np.float32]], starts_s: tuple[int, ...]) -> None:
    """24 hours at 16 kHz, written second by second."""
    clip = (speech * 32767).astype(np.int16)
    silence = np.zeros(16_000, np.int16)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("flac", rate=16_000, layout="mono")
        for second in range(24 * HOUR_S):
            samples = silence
            for start_s in starts_s:
                offset = (second - start_s) * 16_000
                if 0 <= offset < len(clip):
                    samples = silence.copy()
                    samples[: len(clip) - offset] = clip[offset : offset + 16_000]
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = 16_000, second * 16_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
