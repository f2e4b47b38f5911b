"""A server whose engine has a process of its own, and what its end means to requests and readiness."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from choral.api import Model
from choral.config import EngineSettings
from choral.errors import EngineClosed
from choral.options import TranscribeOptions
from choral.server.health import Readiness
from choral.server.service import Service
from choral.server.settings import ServerSettings
from choral.serving.input_sources import OpenFile
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings
from choral.serving.supervised_engine import SupervisedEngine
from one_model import service_of


async def wait_until(condition: Callable[[], bool], limit_s: float = 90.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


def test_killed_engine_fails_its_requests_and_is_started_again(tiny_en_pt: Path, jfk: Path) -> None:
    async def run(service: Service, model: Model, engine: SupervisedEngine) -> None:
        readiness = Readiness(service)
        await readiness.self_test(service.model_id)
        assert readiness.status == "ready"
        with jfk.open("rb") as file:
            audio = OpenFile("jfk.wav", file)
            n_steps = model.stats.steps
            running = asyncio.create_task(service.transcribe(audio, TranscribeOptions(beam_size=5)))
            await wait_until(lambda: model.stats.steps > n_steps)
            first_pid = engine.pid
            os.kill(first_pid, signal.SIGKILL)
            with pytest.raises(EngineClosed):
                await asyncio.wait_for(running, 60)
            await wait_until(lambda: readiness.status == "failed")
            with pytest.raises(EngineClosed):
                await asyncio.wait_for(service.transcribe(audio, TranscribeOptions()), 60)
            await wait_until(lambda: readiness.status == "ready")
            assert engine.pid != first_pid
            transcript = await asyncio.wait_for(service.transcribe(audio, TranscribeOptions()), 90)
        assert "country" in transcript.text
        assert model.stats.windows > 0

    with (
        closing(SupervisedEngine(str(tiny_en_pt), EngineSettings(engine="torch", device="cpu", threads=1))) as engine,
        Runtime.for_service(engine.transcriber, ServingSettings(processes=1), 4) as runtime,
    ):
        assert "the engine has a process of its own" in str(runtime.plan)
        model = Model("tiny.en", engine, engine.transcriber)
        asyncio.run(run(service_of(model, runtime, ServerSettings()), model, engine))
