"""WAV files of real speech for the tests of the command line."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path


def join_clips(clips: Sequence[Path], target: Path) -> Path:
    """Write one WAV file with these 16 kHz mono clips one after another."""
    with wave.open(str(target), "wb") as joined:
        joined.setparams((1, 2, 16_000, 0, "NONE", ""))
        for clip in clips:
            with wave.open(str(clip), "rb") as file:
                assert file.getparams()[:3] == (1, 2, 16_000)
                joined.writeframes(file.readframes(file.getnframes()))
    return target
