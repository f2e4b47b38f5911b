"""`choral serve` on random weights in the shape of a model; every window gets as many tokens as in `choral bench gpu`.

Run as a program, this module is `choral` with such an engine: `--model` names the shape, and all else is real. Requests
must name a temperature, though every window is decoded at 0: else, text as unlikely as this is decoded again at others.
"""

from __future__ import annotations

import dataclasses
import runpy
from typing import cast

from choral.bench.gpu_load import SHORT_TOKENS
from choral.bench.random_model import SHAPES, random_engine_and_tokenizer
from choral.common.logs import LogFormat
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.steps import Pending
from choral.engine.window import Caller, DecodeParams, Params, Result, Window
from choral.longform.load_transcriber import OnDownload
from choral.longform.transcriber import Transcriber
from choral.model.tokenizer import Tokenizer
from choral.serving import runtime_plan, supervised_engine
from choral.serving.engine_main import LoadFunction
from choral.serving.supervised_engine import SupervisedEngine

FORM_FIELDS = {"temperature": "0.2"}


class ForcedEngine:
    """An engine whose windows all have `SHORT_TOKENS` tokens; everything else is the engine's."""

    def __init__(self, engine: Engine, eot: int) -> None:
        self._engine, self._eot = engine, eot

    def submit(self, window: Window[Result], caller: Caller | None = None) -> Pending[Result]:
        if isinstance(window.params, DecodeParams):
            suppressed = (*window.params.suppress_tokens, self._eot)
            forced = dataclasses.replace(
                window.params,
                temperature=0.0,
                timestamps=False,
                max_tokens=SHORT_TOKENS,
                suppress_tokens=suppressed,
            )
            window = dataclasses.replace(window, params=cast("Params[Result]", forced))
        return self._engine.submit(window, caller)

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


def load_random_transcriber(shape: str, settings: EngineSettings, on_download: OnDownload | None) -> Transcriber:
    engine, tokenizer = random_engine_and_tokenizer(shape, settings)
    return Transcriber(ForcedEngine(engine, tokenizer.eot), tokenizer, SHAPES[shape])  # type: ignore[arg-type]


class SupervisedRandomEngine(SupervisedEngine):
    """The name of its model is that of a shape."""

    def __init__(
        self, model: str, settings: EngineSettings, *, log_format: LogFormat | None, load: LoadFunction
    ) -> None:
        """`load` is that of a real engine."""
        super().__init__(model, settings, log_format=log_format, load=load_random_transcriber)


def serve_shapes() -> None:
    """Let servers of this process take the names of shapes for models."""
    from choral.server.model_loader import ModelInfo, ModelLoader  # after the engine's class was replaced

    def describe(loader: ModelLoader, name: str | None, on_download: OnDownload | None = None) -> ModelInfo:
        assert name is not None
        return ModelInfo(name, name, Tokenizer.for_checkpoint(SHAPES[name]), size_bytes=0)

    ModelLoader.describe = describe  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    from choral.bench.random_server import SupervisedRandomEngine  # by this name, its process can find the function

    runtime_plan.needs_engine_process = lambda *, is_on_gpu: True
    supervised_engine.SupervisedEngine = SupervisedRandomEngine  # type: ignore[assignment, misc]
    serve_shapes()
    runpy.run_module("choral", run_name="__main__")
