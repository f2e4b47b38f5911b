"""A real Redis for each test module, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from support.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis_server(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as plain:
        plain.flushall()
    return redis_server.url
