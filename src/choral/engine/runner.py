"""What the engine needs of whoever runs the network. Two exist: `torch_runner` and `ct2_runner`.

A runner belongs to one thread. Each call takes some windows and answers for each of them; an exception out of a call
means that nothing of it counts, so that the windows may be tried again one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from choral.engine.steps import Outcome
from choral.engine.window import DecodeParams, Params, WindowAudio


@dataclass(frozen=True)
class PrefillInput:
    """A window that begins: its places, its encoded audio, and what is wanted."""

    slots: tuple[int, ...]
    features: Any  # of the runner's own kind
    params: DecodeParams
    audio_key: bytes
    is_watched: bool


@dataclass(frozen=True)
class Capacity:
    """What was measured at the start."""

    n_slots: int
    slot_bytes: int
    features_bytes: int  # of one encoder result
    cache_bytes: int
    n_lanes: int = 1  # windows that the encoder takes side by side, in little more time than one


class Runner(Protocol):
    name: str
    device: str
    compute_type: str
    capacity: Capacity
    # What the last call takes on the device, where that is known and the call itself did not wait for it.
    took_s: float | None

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        """The features of each, in one pass."""

    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        """Runs prompts; the windows have taken their places afterwards."""

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Goes on with the windows in these places: one token further, or to their end where it cannot stop."""

    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        """Aligns known texts, or detects languages, from features."""

    def release(self, slots: tuple[int, ...]) -> None:
        """The window in these places has left."""
