"""Conversations made of clips: the samples, and who speaks when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choral.audio.recording import Recording
from choral.diarization import SpeakerTurn

RATE = 16_000
LEVEL = 0.05  # of all clips, as the root of the mean square
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Conversation:
    samples: Samples
    turns: tuple[SpeakerTurn, ...]


def read_samples(path: Path) -> Samples:
    with Recording.open(path) as recording:
        return recording.samples(0, recording.n_samples).copy()


def in_turn(parts: Sequence[tuple[str, Samples]], pause_s: float = 0.5) -> Conversation:
    """Each speaker's part after the other, all as loud."""
    pause = np.zeros(int(pause_s * RATE), np.float32)
    samples, turns = [], []
    start_s = 0.0
    for name, part in parts:
        level = part * (LEVEL / np.sqrt(np.mean(np.square(part))))
        samples += [level.astype(np.float32), pause]
        turns.append(SpeakerTurn(start_s, start_s + part.size / RATE, name))
        start_s += (part.size + pause.size) / RATE
    return Conversation(np.concatenate(samples), tuple(turns))
