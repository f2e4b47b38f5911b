"""A turn: what one speaker says without a longer pause, its sound as far as it is still needed, and its text so far.

Text is only ever added. The sound is that of the newest piece: in a long turn, what is settled is dropped from its
start, and its words become the prompt of what follows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.server.realtime.buffer import AudioBuffer
from choral.server.realtime.server_events import new_id
from choral.server.realtime.session_config import TranscriptionConfig
from choral.server.responses import TextAccumulator

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Turn:
    hints: TranscriptionConfig
    start: int  # its first sample, counted from the first of the session
    audio: AudioBuffer
    id: str = field(default_factory=lambda: new_id("item"))
    is_over: bool = False
    ended_s: float = 0.0  # when its last sample had come, by the clock
    n_samples: int = 0  # of all its sound
    n_asked: int = 0  # of them, that the newest hypothesis was made of
    before: Tokens = ()  # of earlier pieces
    stable: Tokens = ()  # of this piece, as shown
    guess: Tokens = ()  # of the newest hypothesis behind `stable`, not shown
    language: str | None = None  # of `guess`, and of the turn once it has text
    text: TextAccumulator = field(default_factory=TextAccumulator)

    def __post_init__(self) -> None:
        self.n_samples = len(self.audio)

    def append(self, samples: npt.NDArray[np.int16]) -> None:
        self.audio.append(samples)
        self.n_samples += samples.size

    def end(self) -> None:
        self.is_over, self.ended_s = True, time.monotonic()

    @property
    def duration_s(self) -> float:
        return self.n_samples / SAMPLE_RATE

    @property
    def unheard_s(self) -> float:
        """Of sound that came since the newest hypothesis."""
        return (self.n_samples - self.n_asked) / SAMPLE_RATE

    def settle(self, tokens: Tokens) -> None:
        """The first tokens of the guess are shown, and stay."""
        self.stable += tokens
        self.guess = self.guess[len(tokens) :]

    def drop(self, n_tokens: int, n_samples: int) -> None:
        """So many tokens that were shown and samples, from the start, are done with."""
        self.before += self.stable[:n_tokens]
        self.stable = self.stable[n_tokens:]
        self.audio.drop(n_samples)
