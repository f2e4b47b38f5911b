"""Synthetic audio that needs no file: a hum with syllable-like pauses plus noise, in any format that PyAV writes."""

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
BLOCK_S = 10


@dataclass(frozen=True)
class FileFormat:
    suffix: str
    container: str
    codec: str
    rate: int = RATE
    layout: str = "stereo"


FLAC = FileFormat("flac", "flac", "flac", SAMPLE_RATE, "mono")
AUDIO_FORMATS = (
    FileFormat("mp3", "mp3", "libmp3lame"),
    FileFormat("m4a", "mp4", "aac"),
    FileFormat("flac", "flac", "flac"),
    FileFormat("opus", "ogg", "libopus", 48_000),
    FileFormat("wav", "wav", "pcm_s16le"),
)


def synthetic_samples(start_s: float, seconds: float, rate: int, seed: int = 0) -> npt.NDArray[np.float32]:
    t = start_s + np.arange(round(seconds * rate)) / rate
    voice = sum(np.sin(2 * np.pi * 120 * overtone * t) / overtone for overtone in range(1, 20))
    syllables = np.maximum(0, np.sin(2 * np.pi * 0.4 * t)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    noise = np.random.default_rng(seed).normal(0, 0.003, t.size)
    return (0.2 * syllables * voice + noise).astype(np.float32)


def write_synthetic(path: Path, form: FileFormat, seconds: int) -> None:
    """Written in blocks, so that hours take little memory."""

    def block(start_s: int) -> npt.NDArray[np.int16]:
        samples = synthetic_samples(start_s, min(BLOCK_S, seconds - start_s), RATE, seed=start_s)
        return (samples * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)

    _write(path, form, RATE, (block(start_s) for start_s in range(0, seconds, BLOCK_S)))


def write_samples(path: Path, form: FileFormat, samples: npt.NDArray[np.int16]) -> None:
    """16 kHz mono samples."""
    _write(path, form, SAMPLE_RATE, [samples])


def _write(path: Path, form: FileFormat, rate: int, blocks: Iterable[npt.NDArray[np.int16]]) -> None:
    import av

    n_written = 0
    with av.open(str(path), "w", format=form.container) as container:
        stream: Any = container.add_stream(form.codec, rate=form.rate, layout=form.layout)
        resampler = av.AudioResampler(format="s16", layout=form.layout, rate=form.rate)
        for block in blocks:
            frame = av.AudioFrame.from_ndarray(block[None], "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, n_written, Fraction(1, rate)
            n_written += block.size
            for part in resampler.resample(frame):
                container.mux(stream.encode(part))
        for ending in [*resampler.resample(None), None]:
            container.mux(stream.encode(ending))


def synthetic_bytes(form: FileFormat, seconds: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"audio.{form.suffix}"
        write_synthetic(path, form, seconds)
        return path.read_bytes()
