"""The audio that the speed benchmarks send: many short clips, or one long recording joined from them.

Clips are read once and written again for every round, with noise of one 16-bit step (-90 dB, inaudible): no two
requests are equal, so no cache can answer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_SAMPLES
from choral.audio.recording import Recording
from choral.bench.labelled_clips import LabelledClip
from choral.bench.synthetic_audio import FLAC, write_samples
from choral.errors import AudioNotFound

PAUSE_S = 0.5  # between the clips of a long recording
FULL_SCALE = 2**15

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AudioClip:
    samples: Samples
    text: str | None  # the reference transcript; None: unknown
    language: str | None

    @property
    def duration_s(self) -> float:
        return self.samples.size / SAMPLE_RATE


@dataclass(frozen=True)
class AudioFile:
    """A clip on disk, as one request sends it."""

    path: str
    language: str | None

    def samples(self) -> Samples:
        return read_samples(Path(self.path))


def read_samples(path: Path) -> Samples:
    with Recording.open(path) as recording:
        return np.array(recording.samples(0, recording.n_samples), dtype=np.float32)


def short_clips(labelled: Iterable[LabelledClip], n_clips: int) -> tuple[AudioClip, ...]:
    """`n_clips` clips of at most 30 s, repeated if the corpus has fewer."""
    clips = [AudioClip(read_samples(clip.path), clip.text, clip.language) for clip in labelled]
    short = [clip for clip in clips if clip.samples.size <= WINDOW_SAMPLES]
    if not short:
        raise AudioNotFound("there is no clip of at most 30 s to send: choose another folder")
    return tuple(islice(cycle(short), n_clips))


def join_clips(clips: Sequence[AudioClip], duration_s: float) -> AudioClip:
    """One recording of at least this length, with pauses between the clips."""
    parts: list[AudioClip] = []
    filled_s = 0.0
    for clip in cycle(clips):
        if filled_s >= duration_s:
            break
        filled_s += clip.duration_s + PAUSE_S
        parts.append(clip)
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), dtype=np.float32)
    samples = np.concatenate([piece for clip in parts for piece in (clip.samples, pause)])
    languages = {clip.language for clip in parts}
    language = languages.pop() if len(languages) == 1 else None
    return AudioClip(samples, " ".join(clip.text or "" for clip in parts), language)


def write_audio_files(clips: Sequence[AudioClip], folder: Path, seed: int) -> tuple[AudioFile, ...]:
    """FLAC files, each with its own noise."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, clip in enumerate(clips):
        path = folder / f"{index:05d}.flac"
        write_flac(path, noisy(clip.samples, (seed, index)))
        files.append(AudioFile(str(path), clip.language))
    return tuple(files)


def noisy(samples: Samples, seed: tuple[int, ...]) -> npt.NDArray[np.int16]:
    noise = np.random.default_rng(seed).integers(-1, 2, samples.size)
    scaled = np.rint(samples * FULL_SCALE).astype(np.int32) + noise
    return scaled.clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def write_flac(path: Path, samples: npt.NDArray[np.int16]) -> None:
    write_samples(path, FLAC, samples)
