"""Helpers for tests with the real tiny model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import WINDOW_MEL_FRAMES
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.window import WindowAudio
from choral.model.tokenizer import Tokenizer

SETTINGS = EngineSettings(device="cpu", compute_type="float32")


@dataclass(frozen=True)
class Loaded:
    engine: Engine
    tokenizer: Tokenizer


def alone(samples: npt.NDArray[np.float32]) -> WindowAudio:
    """A recording of at most 30 s as a window."""
    return WindowAudio(samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)
