"""One server with a multilingual model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from live_server import LIMIT_BYTES, STALL_S, LiveServer


@pytest.fixture(scope="session")
def live(tiny_ggml: Path) -> Iterator[LiveServer]:
    server = LiveServer(
        "--model", "tiny", "--max-upload-bytes", LIMIT_BYTES, "--upload-stall-s", STALL_S, "--max-audio-s", 600,
        "--allowed-hosts", "127.0.0.1", "--processes", 2,
    )  # fmt: skip
    try:
        server.wait_ready()
        yield server
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with live.client() as client:
        yield client
