"""`choral serve` on random weights in the shape of a model; every window gets as many tokens as in `choral bench gpu`.

Run as a program, this module is `choral` with such an engine: `--model` names the shape, and all else is real. Requests
must name a temperature, though every window is decoded at 0: else, text as unlikely as this is decoded again at others.
"""

from __future__ import annotations

import argparse
import dataclasses
import runpy
from typing import TYPE_CHECKING, cast

from choral.bench.gpu_load import SHORT_TOKENS
from choral.bench.random_model import SHAPES, random_engine_and_tokenizer
from choral.cli import serve as serve_command
from choral.cli.shared_flags import SERVICE_SETTINGS, engine_settings
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.steps import Pending
from choral.engine.window import Caller, DecodeParams, Params, Result, Window
from choral.longform.load_transcriber import OnDownload
from choral.longform.transcriber import Transcriber

if TYPE_CHECKING:
    from choral.api import Model

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


def load_random_model(arguments: argparse.Namespace) -> Model:
    from choral.api import Model
    from choral.serving.supervised_engine import SupervisedEngine

    settings = dataclasses.replace(engine_settings(arguments), **SERVICE_SETTINGS)
    engine = SupervisedEngine(arguments.model, settings, log_format=arguments.log_format, load=load_random_transcriber)
    return Model(f"random {arguments.model}", engine, engine.transcriber)


if __name__ == "__main__":
    from choral.bench.random_server import load_random_model  # of the module, whose functions have names elsewhere

    serve_command.load_served_model = load_random_model
    runpy.run_module("choral", run_name="__main__")
