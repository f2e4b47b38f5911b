"""A model on a fake runner, for faults and timing: the boundary around it is real."""

from __future__ import annotations

import time
from collections.abc import Callable

from choral.config import EngineSettings
from choral.engine.any_engine import AnyEngine
from choral.engine.engine import Engine
from choral.errors import UsageError
from choral.longform.load_transcriber import OnDownload
from choral.longform.transcriber import Transcriber
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from fake_runner import SOON_S, FakeRunner, Plan

DIMS = ModelDims(80, 1500, 384, 6, 4, 51_865, 448, 384, 6, 4)  # those of tiny
ENDLESS = 10**9


def transcriber_on(engine: AnyEngine) -> Transcriber:
    return Transcriber(engine, Tokenizer.for_checkpoint(DIMS), DIMS)


def load_fake(model: str, settings: EngineSettings, on_download: OnDownload) -> Transcriber:
    """For an engine process: windows 100 to 199 never end; the name of the model chooses a fault."""
    if model == "missing":
        raise UsageError("there is no such fake")
    on_download(1, 2)
    runner = FakeRunner(
        plans={number: Plan(ENDLESS) for number in range(100, 200)}, on_call=lambda _: time.sleep(0.001)
    )
    return transcriber_on(Engine(runner, settings))


def wait_for(is_true: Callable[[], object]) -> None:
    """Until a condition that other threads or processes bring about."""
    deadline_s = time.monotonic() + SOON_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
