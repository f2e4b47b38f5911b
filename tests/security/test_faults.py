"""A disk that fills and empties, and decoders that are killed, below a server."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from attack_probe import wait_until
from serve_process import ServeProcess, running
from speech_requests import ROUTE, submit, transcribe, wait_for_job

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
        for delay_s in (None, 0.0, 0.005, 0.01, 0.03, 0.1, 0.3):
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
        draw, n_killed = random.Random(0), 0
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            time.sleep(draw.uniform(0, 2))
            n_killed += kill_decoders(server)
        is_over.set()
        statuses = sum((sender.result() for sender in senders), Counter[int]())
        assert statuses.keys() <= {200, 400}, statuses
        assert statuses[200] > 0, statuses
        assert 2 * statuses[400] <= n_killed, (statuses, n_killed)
        assert "country" in transcribe(server.url, jfk).text
        assert "Traceback" not in server.log


def kill_decoders(server: ServeProcess) -> int:
    """Returns how many were killed."""
    decoders = psutil.Process(server.process.pid).children()
    for decoder in decoders:
        decoder.kill()
    return len(decoders)
