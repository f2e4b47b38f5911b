"""Sound that needs no file: hum, hiss and pauses, about as hard to decode as speech, in any format PyAV writes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 44_100
PIECE_S = 10


@dataclass(frozen=True)
class Format:
    suffix: str
    container: str
    codec: str
    rate: int = RATE
    layout: str = "stereo"


FORMATS = (
    Format("mp3", "mp3", "libmp3lame"),
    Format("m4a", "mp4", "aac"),
    Format("flac", "flac", "flac"),
    Format("opus", "ogg", "libopus", 48_000),
    Format("wav", "wav", "pcm_s16le"),
)


def write_sound(path: Path, form: Format, seconds: int) -> None:
    import av

    with av.open(str(path), "w", format=form.container) as container:
        stream: Any = container.add_stream(form.codec, rate=form.rate, layout=form.layout)
        resampler = av.AudioResampler(format="s16", layout=form.layout, rate=form.rate)
        for start_s in range(0, seconds, PIECE_S):
            frame = av.AudioFrame.from_ndarray(_sound(start_s, min(PIECE_S, seconds - start_s)), "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, start_s * RATE, Fraction(1, RATE)
            for part in resampler.resample(frame):
                container.mux(stream.encode(part))
        for ending in [*resampler.resample(None), None]:
            container.mux(stream.encode(ending))


def sound_bytes(form: Format, seconds: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"sound.{form.suffix}"
        write_sound(path, form, seconds)
        return path.read_bytes()


def _sound(start_s: int, seconds: int) -> npt.NDArray[np.int16]:
    t = start_s + np.arange(seconds * RATE) / RATE
    voice = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 20))
    loudness = np.maximum(0, np.sin(2 * np.pi * 0.4 * t)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    hiss = np.random.default_rng(start_s).standard_normal(t.size)
    sound = (0.2 * loudness * voice + 0.003 * hiss) * 2**15
    return sound.clip(-(2**15), 2**15 - 1).astype(np.int16)[None]
