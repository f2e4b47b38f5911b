"""SIGTERM while every place of a server is taken."""

from __future__ import annotations

import signal
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from attack_probe import wait_until
from serve_process import ServeProcess, running
from speech_requests import ROUTE, submit, transcribe, wait_for_job

pytestmark = pytest.mark.slow
DRAIN_S = 4


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
        server.kill()
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
