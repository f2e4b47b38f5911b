"""A runner that does nothing: under it an engine's whole time is its own.

Every window gets the same number of tokens, one a step, so that the batch stays full to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from choral.engine.runner import PrefillInput
from choral.engine.slots import Capacity
from choral.engine.steps import Finished, InProgress, Outcome
from choral.engine.window import Decoded, Params, WindowAudio

CACHED_RESULTS = 64
NOTHING = Decoded((), avg_logprob=0.0, no_speech_prob=0.0)


class NullRunner:
    name, device, compute_type = "idle", "cpu", "none"
    costs = None

    def __init__(self, n_slots: int, n_tokens: int, result: Decoded = NOTHING) -> None:
        self.capacity = Capacity(n_slots=n_slots, slot_bytes=1, features_bytes=1, cache_bytes=CACHED_RESULTS)
        self._n_tokens, self._result = n_tokens, result
        self._n_left: dict[int, int] = {}  # tokens still to come, by slot

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        return [None] * len(audios)

    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        for start in starts:
            self._n_left[start.slots[0]] = self._n_tokens
        return [InProgress()] * len(starts)

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        return [self._next(slots[0]) for slots in windows]

    def _next(self, slot: int) -> Outcome:
        self._n_left[slot] -= 1
        return InProgress() if self._n_left[slot] else Finished(self._result)

    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        raise NotImplementedError("there is nothing to align without a network")

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._n_left.pop(slot, None)
