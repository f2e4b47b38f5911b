"""Fixtures: the real tiny model with speech cut into windows, and an engine on a fake runner with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import choral.engine.engine_loop
from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.engine.engine import Engine
from choral.engine.factory import torch_engine
from choral.engine.window import WindowAudio
from choral.longform.cuts import cut_padded, n_mel_frames
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from fake_runner import Clock, FakeRunner, engine_on
from real_model import SETTINGS, Loaded, alone


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(choral.engine.engine_loop, "time", clock)
    return clock


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def engine(runner: FakeRunner) -> Iterator[Engine]:
    engine = engine_on(runner)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_ggml: Path) -> Checkpoint:
    return open_checkpoint(tiny_ggml)


@pytest.fixture(scope="session")
def tokenizer(tiny_checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.for_checkpoint(tiny_checkpoint.dims, tiny_checkpoint.vocabulary)


@pytest.fixture(scope="session")
def tiny(tiny_checkpoint: Checkpoint, tokenizer: Tokenizer) -> Iterator[Loaded]:
    engine = torch_engine(tiny_checkpoint, tokenizer, SETTINGS)
    yield Loaded(engine, tokenizer)
    engine.close()


@pytest.fixture(scope="session")
def speech(jfk: Path, speech_clips: list[Path]) -> list[WindowAudio]:
    cut = []
    for path in [jfk, *speech_clips]:
        with Recording.open(path) as recording:
            cut.append(cut_padded(recording, 0, n_mel_frames(recording)))
    return cut


@pytest.fixture(scope="session")
def audios(speech: list[WindowAudio]) -> list[WindowAudio]:
    """Speech, silence and noise."""
    silence = np.zeros(4 * SAMPLE_RATE, np.float32)
    noise = np.random.default_rng(0).normal(0, 0.05, 7 * SAMPLE_RATE).astype(np.float32)
    return [*speech, alone(silence), alone(noise)]
