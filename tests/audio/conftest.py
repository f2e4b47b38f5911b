"""A prep pool whose decoder fails on request, and a server for its downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from choral.audio.prep.pool import PrepPool
from choral.audio.prep.settings import PrepSettings
from local_server import LocalServer, serve
from media_files import Int16Samples
from prep_faults import decode_with_faults


@pytest.fixture
def tones() -> Int16Samples:
    return (np.sin(np.arange(50_000) * 0.05) * 9_000).astype(np.int16)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serve() as server:
        yield server


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., PrepPool]]:
    pools: list[PrepPool] = []

    def make(**settings: object) -> PrepPool:
        given = {"processes": 2, "roots": (str(tmp_path),), "allowed_hosts": ("127.0.0.1",), **settings}
        pools.append(PrepPool(PrepSettings(**given), decode=decode_with_faults))  # type: ignore[arg-type]
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(make_pool: Callable[..., PrepPool]) -> PrepPool:
    return make_pool()
