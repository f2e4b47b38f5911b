"""A real nginx with the configuration of deploy/ in front of a real server: TLS, streaming and errors."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from choral.bench.clips import read_samples, write_flac
from command_lines import DEPLOY
from serve_process import ServeProcess, running
from support.redis_server import free_port

ROUTE = "/v1/audio/transcriptions"
LIMIT_BYTES = 4_000_000


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    flags = ("--max-upload-bytes", LIMIT_BYTES, "--processes", 1, "--threads", 1)
    with running("--model", tiny_en_pt, *flags) as process:
        yield process


@pytest.fixture(scope="module")
def proxied(
    server: ServeProcess, nginx_program: Path, openssl_program: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    subprocess.run(
        [openssl_program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=speech.example.org",
         "-days", "1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True,
    )  # fmt: skip
    ours = (DEPLOY / "nginx.conf").read_text()
    for theirs, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server 127.0.0.1:8000", f"server {server.url.removeprefix('http://')}"),
        ("/etc/ssl/speech.example.org.pem", str(folder / "cert.pem")),
        ("/etc/ssl/private/speech.example.org.key", str(folder / "key.pem")),
    ):
        assert ours.count(theirs) == 1
        ours = ours.replace(theirs, here)
    places = "".join(f"{name}_temp_path {folder};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr warn; events {{}} http {{ access_log off; {places} {ours} }}"
    )
    nginx = subprocess.Popen([nginx_program, "-c", folder / "nginx.conf", "-p", folder, "-e", "stderr"])
    try:
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=False, timeout=60) as client:
            deadline_s = time.monotonic() + 20
            while not _answers(client):
                assert time.monotonic() < deadline_s
                assert nginx.poll() is None
            yield client
    finally:
        nginx.terminate()
        nginx.wait(20)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.ConnectError:
        time.sleep(0.05)
        return False


def test_text_streams_through_the_proxy(proxied: httpx.Client, speech_clips: list[Path], tmp_path: Path) -> None:
    clip = tmp_path / "long.flac"
    samples = np.concatenate([read_samples(path) for path in speech_clips])
    write_flac(clip, np.rint(samples * 32767).astype(np.int16))
    came_s: list[float] = []
    with (
        clip.open("rb") as file,
        proxied.stream(
            "POST",
            ROUTE,
            files={"file": file},
            data={"model": "whisper-1", "stream": "true"},
            headers={"x-request-id": "me"},
        ) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "me"
        for line in answer.iter_lines():
            if "transcript.text" in line:
                came_s.append(time.monotonic())
    assert len(came_s) > 3
    assert came_s[-1] - came_s[0] > 0.3  # not all at once at the end


def test_oversized_upload_gets_chorals_error(proxied: httpx.Client) -> None:
    refused = proxied.post(ROUTE, files={"file": bytes(4 * LIMIT_BYTES)}, data={"model": "whisper-1"})
    assert refused.status_code == 413
    assert f"{LIMIT_BYTES:,} bytes" in refused.json()["error"]["message"]


def test_metrics_are_not_public(proxied: httpx.Client, server: ServeProcess) -> None:
    assert proxied.get("/metrics").status_code == 404
    assert httpx.get(f"{server.url}/metrics").status_code == 200
