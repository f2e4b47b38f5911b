"""`choral` with an engine that takes no time, run as a program: its server's whole time is the server's own.

Everything around the engine is the real thing: uploads, decoding of audio, the queue, segments and answers.
"""

from __future__ import annotations

import runpy

from choral import api
from choral.bench.null_runner import NullRunner
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.window import Decoded
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

TEXT = " Every window gets this one sentence, about as long as what people say in a few seconds."
SLOTS, TOKENS = 64, 30


def idle_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    result = Decoded(tuple(tokenizer.encode(TEXT)), avg_logprob=-0.2, no_speech_prob=0.01)
    return Engine(NullRunner(SLOTS, TOKENS, result), settings)


if __name__ == "__main__":
    api.make_engine = idle_engine  # type: ignore[attr-defined]  # the only part that is replaced
    runpy.run_module("choral", run_name="__main__")
