"""A real Redis per test module, emptied before each test, and the tiny model with a runtime.

Tests with `run_scenario` also run on a Redis in cluster mode, which refuses scripts whose keys are on different nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis

import choral
from choral.jobs import Client, ClientSettings
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings
from queue_scenario import QueueScenario, RunScenario
from support.redis_server import RedisServer, free_port


@pytest.fixture(scope="module")
def redis_server(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as plain:
        plain.flushall()
    return redis_server.url


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(str(tiny_en_pt), engine="torch", device="cpu", compute_type="float32", threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def settings(folder: Path) -> ServingSettings:
    return ServingSettings(processes=1, roots=(str(folder),), allowed_hosts=("127.0.0.1",))


@pytest.fixture(scope="module")
def runtime(model: choral.Model, settings: ServingSettings) -> Iterator[Runtime]:
    with Runtime.for_service(model.transcriber, settings, model.requests_at_once) as opened:
        yield opened


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, ClientSettings(inline_bytes=100_000)) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(
        tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes", "--cluster-port", str(free_port())
    ) as server:
        with redis.Redis.from_url(server.url) as plain:
            plain.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in plain.execute_command("CLUSTER", "INFO"):
                time.sleep(0.02)
        yield server


@pytest.fixture(params=["redis_server", "cluster"])
def run_scenario(request: pytest.FixtureRequest) -> RunScenario:
    url = request.getfixturevalue(request.param).url
    with redis.Redis.from_url(url) as plain:
        plain.flushall()

    def run(steps: Callable[[QueueScenario], Awaitable[None]]) -> None:
        async def run_steps() -> None:
            scenario = QueueScenario(url)
            await scenario.jobs.create_groups()
            try:
                await steps(scenario)
            finally:
                await scenario.redis.aclose()

        asyncio.run(run_steps())

    return run
