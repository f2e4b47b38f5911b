"""The interface between the engine and the network: `torch_runner`, `gpu_runner` and `ct2_runner` implement it.

A runner belongs to one thread. Each call takes a batch of windows and returns an outcome for each. The windows of a
call that raises are retried one by one, and get the same results: whatever may run out of memory comes before the first
change that the retry would notice, and the changes allocate nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from choral.engine.capacity import Capacity
from choral.engine.cost_model import CostModel
from choral.engine.steps import Outcome
from choral.engine.window import DecodeParams, Params, WindowAudio


@dataclass(frozen=True)
class PrefillInput:
    slots: tuple[int, ...]
    features: Any  # what the runner's `encode` returned
    params: DecodeParams
    audio_key: bytes


class Runner(Protocol):
    name: str
    device: str
    compute_type: str
    capacity: Capacity

    @property
    def costs(self) -> CostModel | None:
        """Measured on the device, by a runner whose calls return before the device has done the work.

        None: calls wait for their results, so the engine times them.
        """

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        """The features of each, in one pass."""

    def prefill(self, inputs: Sequence[PrefillInput]) -> Sequence[Outcome]:
        """Run prompts, and write the windows' K/V to their slots."""

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Decode the windows in these slots: by one or a few tokens, or to their end if the runner cannot stop."""

    def align(self, inputs: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        """Align known texts or detect languages, from features."""

    def release(self, slots: tuple[int, ...]) -> None:
        """The window in these slots has left."""
