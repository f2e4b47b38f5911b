"""Samples without speech, and a server for downloads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from local_server import LocalServer, serve
from media_files import Int16Samples


@pytest.fixture
def tones() -> Int16Samples:
    return (np.sin(np.arange(50_000) * 0.05) * 9_000).astype(np.int16)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serve() as server:
        yield server
