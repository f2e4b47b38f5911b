"""What the speed benchmarks send: many short recordings at once, or one long one, each with what is said in it.

Sounds are read once and written out anew for every round with noise of one step of 16 bits (-90 dB), which nobody
hears: so no request is the same as another, and no cache of one system can answer what the others must work for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_SAMPLES
from choral.audio.recording import Recording
from choral.bench.corpus import Clip
from choral.errors import AudioNotFound

PAUSE_S = 0.5  # between the clips that are joined to a long recording
FULL_SCALE = 2**15

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Sound:
    samples: Samples
    text: str | None  # None: nobody wrote down what is said
    language: str | None

    @property
    def duration_s(self) -> float:
        return self.samples.size / SAMPLE_RATE


@dataclass(frozen=True)
class Request:
    """A recording on the disk, as one caller sends it."""

    path: str
    language: str | None

    def samples(self) -> Samples:
        return read_samples(Path(self.path))


def read_samples(path: Path) -> Samples:
    with Recording.open(path) as recording:
        return np.array(recording.samples(0, recording.n_samples), dtype=np.float32)


def short_sounds(clips: Iterable[Clip], n_requests: int) -> tuple[Sound, ...]:
    """As many as asked for, each within one window; where there are fewer clips they come again."""
    found = [Sound(read_samples(clip.path), clip.text, clip.language) for clip in clips]
    short = [sound for sound in found if sound.samples.size <= WINDOW_SAMPLES]
    if not short:
        raise AudioNotFound("there is no clip of at most 30 s to send: choose another folder")
    return tuple(islice(cycle(short), n_requests))


def joined(sounds: Sequence[Sound], duration_s: float) -> Sound:
    """One recording of at least this length out of many, with pauses between them."""
    taken = list(_until(sounds, duration_s))
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), dtype=np.float32)
    samples = np.concatenate([part for sound in taken for part in (sound.samples, pause)])
    languages = {sound.language for sound in taken}
    language = languages.pop() if len(languages) == 1 else None
    return Sound(samples, " ".join(sound.text or "" for sound in taken), language)


def _until(sounds: Sequence[Sound], duration_s: float) -> Iterator[Sound]:
    filled_s = 0.0
    for sound in cycle(sounds):
        if filled_s >= duration_s:
            return
        filled_s += sound.duration_s + PAUSE_S
        yield sound


def write_requests(sounds: Sequence[Sound], folder: Path, seed: int) -> tuple[Request, ...]:
    """The sounds as FLAC files, each with noise of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    requests = []
    for index, sound in enumerate(sounds):
        path = folder / f"{index:05d}.flac"
        write_flac(path, noisy(sound.samples, (seed, index)))
        requests.append(Request(str(path), sound.language))
    return tuple(requests)


def noisy(samples: Samples, seed: tuple[int, ...]) -> npt.NDArray[np.int16]:
    noise = np.random.default_rng(seed).integers(-1, 2, samples.size)
    scaled = np.rint(samples * FULL_SCALE).astype(np.int32) + noise
    return scaled.clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def write_flac(path: Path, samples: npt.NDArray[np.int16]) -> None:
    import av

    with av.open(str(path), "w", format="flac") as container:
        stream = container.add_stream("flac", rate=SAMPLE_RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
