"""A server with a multilingual model, shared by the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from serve_process import LIMIT_BYTES, STALL_S, ServeProcess, running


@pytest.fixture(scope="session")
def shared_server(tiny_ggml: Path) -> Iterator[ServeProcess]:
    with running(
        "--model", "tiny", "--max-upload-bytes", LIMIT_BYTES, "--upload-stall-s", STALL_S, "--max-audio-s", 600,
        "--allowed-hosts", "127.0.0.1", "--processes", 2, "--alias", "house-model=tiny",
        "--dialects", "all", "--wyoming-port", 0,
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def client(shared_server: ServeProcess) -> Iterator[openai.OpenAI]:
    with shared_server.client() as client:
        yield client
