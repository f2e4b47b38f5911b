"""Sound that needs no file: hum, hiss and pauses, about as hard to decode as speech, in any format PyAV writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE

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
    starts_s = range(0, seconds, PIECE_S)
    _write(path, form, RATE, (_sound(start_s, min(PIECE_S, seconds - start_s)) for start_s in starts_s))


def write_samples(path: Path, form: Format, samples: npt.NDArray[np.int16]) -> None:
    """Sound of anyone's, at the rate of recordings."""
    _write(path, form, SAMPLE_RATE, [samples[None]])


def _write(path: Path, form: Format, rate: int, pieces: Iterable[npt.NDArray[np.int16]]) -> None:
    import av

    n_written = 0
    with av.open(str(path), "w", format=form.container) as container:
        stream: Any = container.add_stream(form.codec, rate=form.rate, layout=form.layout)
        resampler = av.AudioResampler(format="s16", layout=form.layout, rate=form.rate)
        for piece in pieces:
            frame = av.AudioFrame.from_ndarray(piece, "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, n_written, Fraction(1, rate)
            n_written += piece.shape[1]
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
