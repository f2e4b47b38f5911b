"""A server with several models over HTTP: names, what is loaded, adding and removing, jobs, live sessions."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from choral.server.api_keys import ApiKey, hash_secret, write_keys
from realtime_client import connected
from serve_process import ServeProcess, running

ADMIN, USER = "ck-admin", "ck-user"


@pytest.fixture(scope="module")
def server(tiny_ggml: Path, tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """With its own store, because models are deleted from it; tiny.en is in it and not served at first."""
    folder = tmp_path_factory.mktemp("several")
    for model in ("tiny", "tiny.en"):
        source = Path(os.environ["CHORAL_MODELS"]) / model
        shutil.copytree(source, folder / "models" / model, copy_function=os.link)
    write_keys(
        folder / "keys.json",
        [
            ApiKey(name="admin", sha256=hash_secret(ADMIN), admin=True),
            ApiKey(name="user", sha256=hash_secret(USER)),
        ],
    )
    with running(
        "--model", "tiny", "--idle-unload", "1s", "--processes", 1, "--engine", "ctranslate2",
        "--api-keys-file", folder / "keys.json", env={"CHORAL_MODELS": str(folder / "models")},
    ) as server:  # fmt: skip
        yield server


def call(server: ServeProcess, method: str, path: str, key: str = USER, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.request(method, f"{server.url}{path}", headers=headers, timeout=60, **fields)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def loaded(server: ServeProcess) -> list[str]:
    models: list[str] = call(server, "GET", "/api/ps").json()["models"]
    return models


def test_a_model_is_added_used_unloaded_and_removed(server: ServeProcess, jfk: Path) -> None:
    assert httpx.get(f"{server.url}/api/ps").status_code == 401
    for method, path in (("POST", "/v1/models/tiny.en"), ("DELETE", "/v1/models/tiny"), ("POST", "/api/ps/tiny")):
        refused = call(server, method, path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
    client = server.client(USER)
    with pytest.raises(openai.NotFoundError):
        client.audio.transcriptions.create(model="tiny.en", file=jfk)

    added = call(server, "POST", "/v1/models/tiny.en", ADMIN)
    assert (added.status_code, added.json()["status"]) == (201, "added")
    assert call(server, "POST", "/v1/models/openai/whisper-tiny.en", ADMIN).status_code == 200
    assert {"tiny", "tiny.en", "openai/whisper-tiny.en"} <= {model.id for model in client.models.list()}
    for name in ("/etc/passwd", "../keys.json", "no-such-model"):
        assert call(server, "POST", f"/v1/models/{name}", ADMIN).status_code in (400, 404)

    with jfk.open("rb") as file:
        text = client.audio.transcriptions.create(model="openai/whisper-tiny.en", file=file).text
    assert "country" in text
    with pytest.raises(openai.BadRequestError, match=r"tiny\.en is English-only"):
        client.audio.transcriptions.create(model="tiny.en", language="fr", file=jfk)
    metrics = call(server, "GET", "/metrics").text
    assert 'choral_audio_seconds_total{model="tiny.en"} 11.0' in metrics
    assert 'choral_model_loads_total{model="tiny.en"} 1.0' in metrics

    wait_until(lambda: not loaded(server))
    process = psutil.Process(server.process.pid)
    wait_until(lambda: not process.children(recursive=True))  # all memory of models is returned
    assert httpx.get(f"{server.url}/health/ready").json() == {"status": "ready"}
    assert call(server, "GET", "/v1/engine").json()["model"]["device"] == "unloaded"
    assert call(server, "POST", "/api/ps/tiny", ADMIN).json() == {"id": "tiny", "object": "model", "status": "loaded"}

    assert call(server, "DELETE", "/v1/models/tiny", ADMIN).json()["error"]["code"] == "default_model"
    assert call(server, "DELETE", "/v1/models/tiny.en", ADMIN).json()["status"] == "deleted"
    assert call(server, "GET", "/v1/models/tiny.en").status_code == 404
    assert call(server, "DELETE", "/v1/models/tiny.en", ADMIN).status_code == 404


def test_jobs_and_live_sessions_choose_a_model(server: ServeProcess, tiny_en_pt: Path, jfk: Path) -> None:
    shutil.copytree(tiny_en_pt.parent, store_of(server) / "tiny.en", copy_function=os.link, dirs_exist_ok=True)
    assert call(server, "POST", "/v1/models/tiny.en", ADMIN).status_code in (200, 201)
    unknown = call(server, "POST", "/v1/jobs", files={"file": jfk.read_bytes()}, data={"model": "other"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
    french = call(
        server, "POST", "/v1/jobs", files={"file": jfk.read_bytes()}, data={"model": "tiny.en", "language": "fr"}
    )
    assert french.status_code == 400
    job = call(server, "POST", "/v1/jobs", files={"file": jfk.read_bytes()}, data={"model": "tiny.en"}).json()["id"]
    wait_until(lambda: call(server, "GET", f"/v1/jobs/{job}").json()["state"] == "succeeded")

    headers, query = {"Authorization": f"Bearer {USER}"}, "?intent=transcription&model=tiny.en"
    # The model may have to be loaded before the handshake.
    with connected(server.url, query=query, additional_headers=headers, open_timeout=60) as session:
        session.configure(transcription={"model": "gpt-4o-transcribe"}, turn_detection=None)
        other = {"type": "transcription", "audio": {"input": {"transcription": {"model": "tiny"}}}}
        session.send("session.update", session=other)
        assert session.wait_for_error()["code"] == "model_not_found"
        time.sleep(2)  # longer than an idle model stays
        assert loaded(server) == ["tiny.en"]
        refused = call(server, "DELETE", "/v1/models/tiny.en", ADMIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_in_use")
    wait_until(lambda: not loaded(server))


def store_of(server: ServeProcess) -> Path:
    return Path(psutil.Process(server.process.pid).environ()["CHORAL_MODELS"])
