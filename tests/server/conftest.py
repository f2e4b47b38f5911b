"""A server with a multilingual model, shared by the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from live_server import LIMIT_BYTES, STALL_S, LiveServer, running


@pytest.fixture(scope="session")
def live(tiny_ggml: Path) -> Iterator[LiveServer]:
    with running(
        "--model", "tiny", "--max-upload-bytes", LIMIT_BYTES, "--upload-stall-s", STALL_S, "--max-audio-s", 600,
        "--allowed-hosts", "127.0.0.1", "--processes", 2,
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with live.client() as client:
        yield client
