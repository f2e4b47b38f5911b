"""One real engine for all tests of a module, request pools on it whose decoder fails on request, and a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.serving.engine_server import EngineServer
from choral.serving.pool_settings import PoolSettings
from choral.serving.request_inputs import InputLimits
from choral.serving.request_pool import RequestPool
from local_server import LocalServer, serve
from media_files import Int16Samples
from request_faults import decode_with_faults


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def engine_server(model: choral.Model) -> Iterator[EngineServer]:
    server = EngineServer(model.transcriber)
    yield server
    server.close()


@pytest.fixture
def make_pool(engine_server: EngineServer, tmp_path: Path) -> Iterator[Callable[..., RequestPool]]:
    pools: list[RequestPool] = []

    def make(n_processes: int = 1, n_requests: int = 4, **settings: object) -> RequestPool:
        known = InputLimits.__dataclass_fields__
        given = {"roots": (str(tmp_path),), "allowed_hosts": ("127.0.0.1",), **settings}
        limits = InputLimits(**{name: value for name, value in given.items() if name in known})  # type: ignore[arg-type]
        others = {name: value for name, value in given.items() if name not in known}
        pool_settings = PoolSettings(n_processes=n_processes, n_requests=n_requests, limits=limits, **others)  # type: ignore[arg-type]
        pools.append(RequestPool(engine_server.add_client, pool_settings, decode=decode_with_faults))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def free_pool(engine_server: EngineServer) -> Iterator[RequestPool]:
    """Two processes that may read anything, as for the command line; shared by the tests of a module."""
    settings = PoolSettings(n_processes=2, n_requests=4)
    with RequestPool(engine_server.add_client, settings, decode=decode_with_faults) as pool:
        yield pool


@pytest.fixture
def tones() -> Int16Samples:
    """Three seconds without speech, which give little text."""
    return (np.sin(np.arange(50_000) * 0.05) * 9_000).astype(np.int16)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serve() as server:
        yield server
