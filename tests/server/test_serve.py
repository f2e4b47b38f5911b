"""The command `choral serve`: output, keys and limits, request ids, metrics, logs, overload and shutdown."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.realtime import ClientSecretCreateResponse

import node_client
from choral.speakers.networks import SpeakerNetworks
from realtime_client import connect_error, connected
from serve_process import ServeProcess

ROUTE = "/v1/audio/transcriptions"
DIALECT_PATHS = ("/asr", "/detect-language", "/inference", "/load", "/v1/listen")
SENTENCE = "ask not what your country can do for you"


def keys(*arguments: object) -> str:
    command = [sys.executable, "-m", "choral", "keys", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def free_key(keys_file: Path) -> str:
    return keys("add", "ann", "--file", keys_file)


@pytest.fixture(scope="module")
def guarded(keys_file: Path, free_key: str, tiny_en_pt: Path) -> Iterator[ServeProcess]:
    server = ServeProcess(
        "--model", "tiny.en", "--api-keys-file", keys_file, "--cors-origins", "https://example.org",
        "--log-format", "json", "--queue-limit", 2, "--processes", 1,
    )  # fmt: skip
    try:
        server.wait_ready()
        yield server
    finally:
        server.process.kill()
        server.stop()


def test_printed_curl_command_works(guarded: ServeProcess, free_key: str, jfk: Path) -> None:
    assert re.match(r"choral serves tiny.en at http://127.0.0.1:\d+\n", guarded.greeting)
    # As many slots as the free memory allows.
    assert re.search(r"torch on cpu in float32, encoder budget 32,768 frames, \d+ slots", guarded.greeting)
    assert "requests run in up to" in guarded.greeting
    line = guarded.greeting.splitlines()[-1].strip().replace("talk.mp3", str(jfk))
    assert shlex.split(line)[0] == "curl"
    done = subprocess.run(
        ["bash", "-c", f"{line} --silent"], env={"CHORAL_API_KEY": free_key, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert SENTENCE in json.loads(done.stdout)["text"]


def test_keys_are_required_and_stored_as_hashes(guarded: ServeProcess, free_key: str, keys_file: Path) -> None:
    assert free_key not in keys_file.read_text()
    assert keys_file.stat().st_mode & 0o077 == 0
    with guarded.client("ck-wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.models.list()
    assert refused.value.code == "invalid_api_key"
    assert httpx.get(f"{guarded.url}/v1/models").json()["error"]["code"] == "no_api_key"
    assert httpx.get(f"{guarded.url}/metrics").status_code == 401
    for path in DIALECT_PATHS:
        assert httpx.post(f"{guarded.url}{path}").json()["error"]["code"] == "no_api_key"
    assert httpx.get(f"{guarded.url}/health/ready").status_code == 200
    with guarded.client(free_key) as client:
        assert client.models.retrieve("tiny.en").id == "tiny.en"


def test_other_places_of_a_key(guarded: ServeProcess, free_key: str) -> None:
    """Headers of gateways; the query of a WebSocket, which no log has."""
    assert httpx.get(f"{guarded.url}/v1/models", headers={"Authorization": f"Token {free_key}"}).status_code == 200
    for name in ("X-API-Key", "api-key"):
        assert httpx.get(f"{guarded.url}/v1/models", headers={name: free_key}).status_code == 200
    assert httpx.get(f"{guarded.url}/v1/models?api_key={free_key}").json()["error"]["code"] == "no_api_key"
    for query in (f"?api_key={free_key}", f"?intent=transcription&api%2Dkey={free_key}&model=whisper-1"):
        with connected(guarded.url, query):
            pass
    with connected(guarded.url, "?speed=2", additional_headers={"X-API-Key": free_key}) as client:
        assert client.receive()["warning"]["param"] == "speed"
    assert connect_error(guarded.url, "?api_key=ck-wrong")[1]["code"] == "invalid_api_key"
    assert connect_error(guarded.url, "")[1]["code"] == "no_api_key"
    assert free_key not in guarded.log
    assert "ck-wrong" not in guarded.log


def test_client_secrets(guarded: ServeProcess, keys_file: Path) -> None:
    """A browser connects with a short-lived key, to the session that its server has configured."""
    key = keys("add", "web", "--file", keys_file)
    transcription = {"model": "gpt-4o-transcribe", "language": "en"}
    audio = {"input": {"transcription": transcription, "turn_detection": {"type": "server_vad", "threshold": 0.7}}}
    with guarded.client(key) as client:
        made = client.realtime.client_secrets.create(
            session={"type": "transcription", "audio": audio}, expires_after={"anchor": "created_at", "seconds": 60}
        )
        raw = client.realtime.client_secrets.with_raw_response.create().http_response.json()
        ClientSecretCreateResponse.model_validate_json(json.dumps(raw), strict=True)
    assert 50 < made.expires_at - time.time() <= 60
    as_browser = {"subprotocols": ["realtime", f"openai-insecure-api-key.{made.value}"]}
    with connected(guarded.url, "", **as_browser) as browser:
        session = browser.events[0]["session"]
    assert session["audio"]["input"]["transcription"] == transcription
    assert session["audio"]["input"]["turn_detection"]["threshold"] == 0.7
    http = {"Authorization": f"Bearer {made.value}"}
    assert httpx.get(f"{guarded.url}/v1/models", headers=http).status_code == 401  # it opens live sessions only
    assert httpx.post(f"{guarded.url}/v1/realtime/client_secrets", headers=http).status_code == 401

    beta = {"input_audio_format": "g711_ulaw", "input_audio_noise_reduction": {"type": "near_field"}, "modalities": []}
    answer = httpx.post(
        f"{guarded.url}/v1/realtime/transcription_sessions", headers={"X-API-Key": key}, json=beta, timeout=60
    )
    assert answer.json()["input_audio_format"] == "g711_ulaw"
    assert "input_audio_noise_reduction" in answer.headers["warning"]
    assert "modalities" in answer.headers["warning"]
    with connected(guarded.url, f"?api_key={answer.json()['client_secret']['value']}") as browser:
        assert browser.event_types == ["transcription_session.created"]
        assert browser.events[0]["session"]["input_audio_format"] == "g711_ulaw"

    keys("remove", "web", "--file", keys_file)
    assert connect_error(guarded.url, "", **as_browser)[1]["code"] == "invalid_api_key"
    assert made.value not in guarded.log


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"expires_after": {"seconds": 5}}, 400, "expires_after.seconds"),
        ({"session": {"type": "realtime"}}, 400, "session.type"),
        ({"session": {"type": "transcription", "audio": {"input": {"format": 7}}}}, 400, "session.audio.input.format"),
        ({"session": "x" * 20_000}, 413, None),
        ([], 400, None),
    ],
)
def test_bad_requests_for_client_secrets(
    guarded: ServeProcess, free_key: str, body: object, status: int, param: str | None
) -> None:
    headers = {"X-API-Key": free_key}
    answer = httpx.post(f"{guarded.url}/v1/realtime/client_secrets", headers=headers, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_node_client_without_key(guarded: ServeProcess, openai_node: Path) -> None:
    (refused,) = node_client.run(openai_node, guarded.url, [node_client.Call("models.list")], "ck-wrong")
    assert (refused.error.kind, refused.error.code) == ("AuthenticationError", "invalid_api_key")


def test_bench_against_running_server(guarded: ServeProcess, free_key: str, jfk: Path, tmp_path: Path) -> None:
    (tmp_path / jfk.name).symlink_to(jfk)
    flags = ["--url", guarded.url, "--concurrency", "1", "--requests", "2", "--rounds", "1", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "choral", "bench", "serve", str(tmp_path), *flags],
        capture_output=True, text=True, check=False, env={**os.environ, "CHORAL_API_KEY": free_key},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (level,) = json.loads(done.stdout.splitlines()[-1])["levels"]
    assert (level["engine"], level["share"], level["server"]["failures"]) == (None, None, [])
    assert level["server"]["requests_per_s"] > 0


def test_key_file_changes_take_effect_at_once(
    guarded: ServeProcess, keys_file: Path, jfk: Path, networks: SpeakerNetworks
) -> None:
    limited = keys("add", "bob", "--file", keys_file, "--requests-per-minute", 3, "--audio-minutes-per-day", 0.1)
    with guarded.client(limited) as client:
        with pytest.raises(openai.RateLimitError) as minutes:
            client.audio.transcriptions.create(file=jfk, model="tiny.en")
        assert "0.1 minutes of audio in 24 hours and has used 0.0; this audio is 0.2 more" in minutes.value.message
        assert minutes.value.response.headers["retry-after"] == "86400"
        headers = {"authorization": f"Bearer {limited}"}
        turns = httpx.post(f"{guarded.url}/v1/audio/diarization", files={"file": jfk.read_bytes()}, headers=headers)
        assert (turns.status_code, "this audio is 0.2 more" in turns.text) == (429, True)
        with pytest.raises(openai.BadRequestError):
            client.audio.transcriptions.create(file=("a", b"no audio"), model="tiny.en")
        with pytest.raises(openai.RateLimitError) as requests:
            client.audio.transcriptions.create(file=jfk, model="tiny.en")
        assert "3 requests per minute" in requests.value.message
        assert 1 <= int(requests.value.response.headers["retry-after"]) <= 60
        keys("remove", "bob", "--file", keys_file)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert keys("list", "--file", keys_file).splitlines()[1].split() == ["ann", "0", "0", "0", "no"]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's own, on translations
def test_english_only_model_refuses_other_languages(guarded: ServeProcess, free_key: str, jfk: Path) -> None:
    with guarded.client(free_key) as client:
        with pytest.raises(openai.BadRequestError) as translation:
            client.audio.translations.create(file=jfk, model="tiny.en")
        assert "cannot translate" in translation.value.message
        with pytest.raises(openai.BadRequestError) as language:
            client.audio.transcriptions.create(file=jfk, model="tiny.en", language="fr")
        assert language.value.param == "language"


def test_request_ids_cors_metrics_and_logs(guarded: ServeProcess, free_key: str) -> None:
    key = {"authorization": f"Bearer {free_key}"}
    answer = httpx.get(f"{guarded.url}/v1/models", headers={**key, "x-request-id": "mine-1", "origin": "https://a.b"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert "access-control-allow-origin" not in answer.headers
    odd = httpx.get(f"{guarded.url}/v1/models", headers={**key, "x-request-id": "a b", "origin": "https://example.org"})
    assert re.fullmatch(r"[0-9a-f]{32}", odd.headers["x-request-id"])
    assert odd.headers["access-control-allow-origin"] == "https://example.org"
    preflight = httpx.options(
        f"{guarded.url}{ROUTE}", headers={"origin": "https://example.org", "access-control-request-method": "POST"}
    )
    assert preflight.status_code == 200
    metrics = httpx.get(f"{guarded.url}/metrics", headers=key).text
    for name in (
        'choral_http_requests_total{method="GET",route="/v1/models",status="200"}',
        "choral_queue_seconds_count",
        "choral_first_text_seconds_count",
        "choral_audio_seconds_total",
        "choral_audio_speed_ratio_count",
        "choral_engine_windows_encoded_total",
        "choral_engine_tokens_total",
    ):
        assert name in metrics
    slots = re.search(r"(\d+) slots", guarded.greeting)
    assert slots is not None
    assert f'choral_engine_slots{{model="tiny.en"}} {slots[1]}.0' in metrics
    lines = [json.loads(line) for line in guarded.log.splitlines() if line.startswith("{")]
    assert "GET /v1/models: 200" in next(line["message"] for line in lines if line.get("request") == "mine-1")


def test_overload_is_refused_before_the_body_is_read(guarded: ServeProcess, free_key: str, jfk: Path) -> None:
    """With a queue limit of two, a third request is refused before its body arrives."""
    with guarded.client(free_key) as client:
        clip = jfk.read_bytes()
        threads = [
            threading.Thread(
                target=lambda: client.audio.transcriptions.create(
                    file=("a.wav", clip), model="tiny.en", temperature=1.0, extra_body={"hotwords": "one two"}
                )
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        refused = None
        deadline_s = time.monotonic() + 20
        while refused is None and time.monotonic() < deadline_s:
            answer = httpx.post(
                f"{guarded.url}{ROUTE}",
                headers={"authorization": f"Bearer {free_key}", "content-type": "multipart/form-data; boundary=x"},
                content=b"no form",
            )
            refused = answer if answer.status_code == 503 else None
        for thread in threads:
            thread.join()
    assert refused is not None
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "queue_full"
    assert "2 requests are already in progress" in refused.json()["error"]["message"]


def test_missing_networks_and_sigterm_that_drains_requests(tiny_en_pt: Path, jfk: Path, tmp_path: Path) -> None:
    env = {"CHORAL_API_KEY": "secret", "CHORAL_MODELS": str(tmp_path), "PIP_NO_INDEX": "1"}
    server = ServeProcess("--model", tiny_en_pt, env=env)
    server.wait_ready()
    with server.client("secret") as client, ThreadPoolExecutor(1) as pool:
        with pytest.raises(openai.InternalServerError, match="'speakers' could not be downloaded") as offline:
            client.audio.transcriptions.create(file=jfk, model="whisper-1", response_format="diarized_json")
        assert (offline.value.status_code, offline.value.code) == (503, "download_failed")
        answer = pool.submit(client.audio.transcriptions.create, file=jfk, model="whisper-1")
        metrics = httpx.Client(base_url=server.url, headers={"authorization": "Bearer secret"})
        with metrics:
            while "choral_http_requests_open 2.0" not in metrics.get("/metrics").text:
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
        assert SENTENCE in answer.result().text
    server.process.wait(30)  # a second signal would end it at once
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health/live")


def test_invalid_command_lines(tmp_path: Path) -> None:
    for flags, text in (
        (["--port", "99999"], "port is 99999"),
        (["--host", "no.such.host.example"], "cannot listen on no.such.host.example:8000"),
        (["--api-keys-file", tmp_path / "none"], "make a first key with `choral keys add"),
        (["--cors-origins", "example.org"], "must look like https://example.org"),
        (["--redis", "env"], "needs the URL of a Redis server in CHORAL_REDIS"),
    ):
        command = [sys.executable, "-m", "choral", "serve", *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert text in done.stderr
