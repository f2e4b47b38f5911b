"""A server with a small English model and low limits, for all realtime tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audio.media_files import Int16Samples, read_clip
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from realtime_client import RealtimeClient, connected
from serve_process import ServeProcess, running

MESSAGE_BYTES, BUFFER_S, SESSIONS = 200_000, 60, 8


@pytest.fixture(scope="session")
def realtime_server(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    with running(
        "--model", tiny_en_pt, "--realtime-message-bytes", MESSAGE_BYTES, "--realtime-buffer-s", BUFFER_S,
        "--realtime-sessions", SESSIONS, "--processes", 1,
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def session(realtime_server: ServeProcess) -> Iterator[RealtimeClient]:
    with connected(realtime_server.url) as client:
        yield client


@pytest.fixture(scope="session")
def jfk_samples(jfk: Path) -> Int16Samples:
    return read_clip(jfk)


@pytest.fixture(scope="session")
def sentences(speech_clips: list[Path]) -> list[Int16Samples]:
    return [read_clip(path) for path in speech_clips]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    english = ModelDims(
        n_mels=80, n_audio_ctx=1500, n_audio_state=384, n_audio_head=6, n_audio_layer=4,
        n_vocab=51864, n_text_ctx=448, n_text_state=384, n_text_head=6, n_text_layer=4,
    )  # fmt: skip
    return Tokenizer.for_checkpoint(english)
