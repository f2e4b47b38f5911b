"""A real server, a real Redis and speech for the attacks of a module.

Each test wraps its attack in `attack_probe.under_attack(server, speech)`, which asserts that `/health/live` answers
within 250 ms and that good requests succeed while it runs. A module that needs other flags starts its own server with
`serve_process.running`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from attack_probe import ProbeReport, under_attack
from serve_process import ServeProcess, running
from support.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """`choral serve` without keys, with jobs in a folder of its own."""
    with running(
        "--model", tiny_en_pt, "--data", tmp_path_factory.mktemp("data"),
        "--allowed-hosts", "127.0.0.1,localhost", "--processes", 1, "--threads", 1, "--upload-stall-s", 2,
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def http(server: ServeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def attacked(server: ServeProcess, jfk: Path) -> Callable[..., AbstractContextManager[ProbeReport]]:
    """`with attacked(): …` probes the module's server; takes the settings of `under_attack`."""
    return lambda **settings: under_attack(server, jfk, **settings)


@pytest.fixture(scope="module")
def redis_server(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture(scope="module")
def flags(tiny_en_pt: Path) -> tuple[object, ...]:
    """Of a small server or worker."""
    return ("--model", tiny_en_pt, "--threads", 1, "--processes", 1)
