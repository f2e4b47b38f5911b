"""A server with a small English model and low limits, for all tests of live audio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audio.media_files import Sound, read_clip
from live_client import LiveClient, joined
from live_server import LiveServer, running

MESSAGE_BYTES, BUFFER_S, SESSIONS = 200_000, 60, 8


@pytest.fixture(scope="session")
def live_server(tiny_en_pt: Path) -> Iterator[LiveServer]:
    with running(
        "--model", tiny_en_pt, "--realtime-message-bytes", MESSAGE_BYTES, "--realtime-buffer-s", BUFFER_S,
        "--realtime-sessions", SESSIONS, "--processes", 1,
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def session(live_server: LiveServer) -> Iterator[LiveClient]:
    with joined(live_server.url) as client:
        yield client


@pytest.fixture(scope="session")
def jfk_sound(jfk: Path) -> Sound:
    return read_clip(jfk)


@pytest.fixture(scope="session")
def sentences(speech_clips: list[Path]) -> list[Sound]:
    return [read_clip(path) for path in speech_clips]
