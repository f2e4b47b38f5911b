"""Readiness while the engine's device fails, and after it works again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import choral
from choral.engine import group
from choral.engine.failure_streak import MAX_FAILURES
from choral.errors import WindowFailed
from choral.longform.load_transcriber import load_transcriber
from choral.server import health
from choral.server.settings import ServerSettings
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings
from one_model import service_of

BROKEN = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def model(tiny_en_ct2: Path) -> Iterator[choral.Model]:
    with choral.load(str(tiny_en_ct2), engine="ctranslate2", device="cpu", threads=1) as model:
        yield model


@pytest.fixture
def client(model: choral.Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(health, "RETEST_S", 0.05)
    with readiness_client(model) as client:
        yield client


@contextmanager
def readiness_client(model: choral.Model) -> Iterator[TestClient]:
    with Runtime.for_service(model.transcriber, ServingSettings(processes=1), 8) as runtime:
        router = health.make_router(service_of(model, runtime, ServerSettings()))
        app = FastAPI()
        app.include_router(router)
        with TestClient(app) as client:
            yield client


def until_ready_is(client: TestClient, status: int) -> dict[str, str]:
    deadline_s = time.monotonic() + 30
    while (response := client.get("/health/ready")).status_code != status:
        assert time.monotonic() < deadline_s, response.text
        time.sleep(0.02)
    body: dict[str, str] = response.json()
    return body


def fail(*_: object) -> Any:
    raise RuntimeError(BROKEN)


@pytest.mark.parametrize("call", ["encode", "decode"])
def test_a_device_that_fails_at_every_step_makes_the_server_unready(
    client: TestClient, model: choral.Model, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    assert until_ready_is(client, 200) == {"status": "ready"}
    runner = model._engine._loop.runner  # type: ignore[union-attr]
    with monkeypatch.context() as broken:
        broken.setattr(runner, call, fail)
        for seed in range(MAX_FAILURES):
            assert model.is_working
            with pytest.raises(WindowFailed, match="illegal memory access"):
                model.transcribe(noise(seed), temperature=0)
        response = client.get("/health/ready")
        assert (response.status_code, response.json()["status"]) == (503, "failed")
        assert BROKEN in response.json()["reason"]
        time.sleep(0.3)  # self-tests fail as well
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").json() == {"status": "live"}
    assert until_ready_is(client, 200) == {"status": "ready"}  # without a request


def test_a_server_becomes_ready_once_a_self_test_passes(
    model: choral.Model, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(model._engine._loop.runner, "decode", fail)  # type: ignore[union-attr]
        client: TestClient = request.getfixturevalue("client")
        while (body := client.get("/health/ready").json())["status"] == "starting":
            time.sleep(0.02)
        assert body["status"] == "failed"
        assert BROKEN in body["reason"]
    until_ready_is(client, 200)


def test_a_server_is_ready_while_one_of_its_devices_works(tiny_en_ct2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "RETEST_S", 0.0)
    settings = choral.EngineSettings(engine="ctranslate2", devices="cpu,cpu", threads=1)
    transcriber = load_transcriber(str(tiny_en_ct2), settings)  # in this process, where a device can be broken
    model = choral.Model("tiny.en", transcriber.engine, transcriber)
    with model, readiness_client(model) as client:
        assert until_ready_is(client, 200) == {"status": "ready"}
        assert 'choral_engine_device_up{device="cpu",model="tiny.en"} 1.0' in client.get("/metrics").text
        with monkeypatch.context() as broken:
            broken.setattr(model._engine._engines[0]._loop.runner, "encode", fail)  # type: ignore[union-attr]
            for seed in range(MAX_FAILURES):
                model.transcribe(noise(seed), temperature=0)  # by the other device
            response = client.get("/health/ready")
            assert (response.status_code, response.json()["status"]) == (200, "ready")
            assert BROKEN in response.json()["failed_devices"]["cpu"]
            assert 'choral_engine_device_up{device="cpu",model="tiny.en"} 0.0' in client.get("/metrics").text
        model.transcribe(noise(0), temperature=0)  # a self-test goes with it
        deadline_s = time.monotonic() + 30
        while client.get("/health/ready").json() != {"status": "ready"}:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def noise(seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.1, 16_000).astype(np.float32)
