"""A runner that does nothing, so that all measured time is the engine's or the server's own.

Every window gets the same number of tokens, one per step, so the batch stays full to the end. Run as a program, this
module is `choral` with such an engine: uploads, audio decoding, the queue, segments and responses are real.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from typing import Any

from choral.config import EngineSettings
from choral.engine.capacity import Capacity
from choral.engine.engine import Engine
from choral.engine.runner import PrefillInput
from choral.engine.steps import Finished, InProgress, Outcome
from choral.engine.window import Decoded, Params, WindowAudio
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

N_CACHED = 64
SERVER_SLOTS, SERVER_TOKENS = 64, 30
SERVER_TEXT = " Every window gets this one sentence, about as long as what people say in a few seconds."


class NullRunner:
    name, device, compute_type = "idle", "cpu", "none"
    costs = None

    def __init__(self, n_slots: int, n_tokens: int, result: Decoded | None = None) -> None:
        self.capacity = Capacity(n_slots=n_slots, slot_bytes=1, features_bytes=1, cache_bytes=N_CACHED)
        self._n_tokens = n_tokens
        self._result = result or Decoded((), avg_logprob=0.0, no_speech_prob=0.0)
        self._n_left: dict[int, int] = {}  # tokens to come, by slot

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        return [None] * len(audios)

    def prefill(self, inputs: Sequence[PrefillInput]) -> Sequence[Outcome]:
        for one in inputs:
            self._n_left[one.slots[0]] = self._n_tokens
        return [InProgress()] * len(inputs)

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        return [self._step(slots[0]) for slots in windows]

    def _step(self, slot: int) -> Outcome:
        self._n_left[slot] -= 1
        return InProgress() if self._n_left[slot] else Finished(self._result)

    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        raise NotImplementedError("there is no network to align with")

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._n_left.pop(slot, None)


def make_null_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    result = Decoded(tuple(tokenizer.encode(SERVER_TEXT)), avg_logprob=-0.2, no_speech_prob=0.01)
    return Engine(NullRunner(SERVER_SLOTS, SERVER_TOKENS, result), settings)


if __name__ == "__main__":
    from choral.longform import load_transcriber

    load_transcriber.make_engine = make_null_engine  # type: ignore[attr-defined]
    runpy.run_module("choral", run_name="__main__")
