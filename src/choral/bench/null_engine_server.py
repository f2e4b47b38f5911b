"""`choral serve` with an engine that does nothing in a process of its own, as the engine of a GPU has one.

Run as a program, this module is `choral` with such an engine; `null_runner` has one in the server's process.
"""

from __future__ import annotations

import runpy

from choral.bench.null_runner import make_null_engine
from choral.common.logs import LogFormat
from choral.config import EngineSettings
from choral.longform import load_transcriber
from choral.longform.load_transcriber import OnDownload
from choral.longform.transcriber import Transcriber
from choral.serving import runtime_plan, supervised_engine
from choral.serving.engine_main import LoadFunction
from choral.serving.supervised_engine import SupervisedEngine


def load_null_transcriber(model: str, settings: EngineSettings, on_download: OnDownload | None) -> Transcriber:
    load_transcriber.make_engine = make_null_engine  # type: ignore[attr-defined]
    return load_transcriber.load_transcriber(model, settings, on_download)


class SupervisedNullEngine(SupervisedEngine):
    def __init__(
        self, model: str, settings: EngineSettings, *, log_format: LogFormat | None, load: LoadFunction
    ) -> None:
        """`load` is that of a real engine."""
        super().__init__(model, settings, log_format=log_format, load=load_null_transcriber)


if __name__ == "__main__":
    from choral.bench.null_engine_server import SupervisedNullEngine  # by this name, its process can find the function

    runtime_plan.needs_engine_process = lambda *, is_on_gpu: True
    supervised_engine.SupervisedEngine = SupervisedNullEngine  # type: ignore[assignment, misc]
    runpy.run_module("choral", run_name="__main__")
