"""What engines are measured with: speech that the user gives, or a sample, or made-up sound where there is none.

Windows and hours are made out of a few clips, each a little different from the last: what was encoded once is never
of use again, so that the encoder cache cannot help. Windows are views into one array: thousands take no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.recording import Recording
from choral.engine.window import WindowAudio
from choral.errors import AudioEmpty, DownloadFailed

MOST_CLIPS = 64
SHORTEST_CLIP = SAMPLE_RATE  # samples
ROTATION = 8  # samples by which a window differs from the one before of the same clip: half a millisecond
PAUSE_SAMPLES = SAMPLE_RATE // 2
MADE_UP_S = 11

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Material:
    name: str
    clips: tuple[Samples, ...]  # of at most 30 s each
    is_speech: bool  # False: made up, and no voice detector takes it for speech

    @cached_property
    def _rings(self) -> tuple[Samples, ...]:
        """Every clip twice: from any start on it has its full length."""
        return tuple(np.concatenate([clip, clip]) for clip in self.clips)

    def window(self, number: int) -> WindowAudio:
        """Clips in turn, each time from a little later on, with the start put at the end."""
        turn, index = divmod(number, len(self.clips))
        n_samples = self.clips[index].size
        start = turn * ROTATION % n_samples
        samples = self._rings[index][start : start + n_samples]
        return WindowAudio(samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)

    def clip(self, number: int, seconds: float) -> Samples:
        """The first seconds of the first clip, with a hiss of its own that nobody hears."""
        samples = np.resize(self.clips[0], round(seconds * SAMPLE_RATE))
        return samples + np.random.default_rng(number).normal(0, 1e-4, samples.size).astype(np.float32)

    def long(self, seconds: float) -> npt.NDArray[np.int16]:
        """All clips again and again with pauses between them; a hiss makes every round different."""
        pause = np.zeros(PAUSE_SAMPLES, dtype=np.float32)
        one_round = np.concatenate([part for clip in self.clips for part in (clip, pause)])
        repeated = np.resize((one_round * 32_000).clip(-32_000, 32_000).astype(np.int16), round(seconds * SAMPLE_RATE))
        return repeated + np.random.default_rng(0).integers(-3, 4, repeated.size, dtype=np.int16)


def material_of(sources: Sequence[str]) -> Material:
    """The clips of these files; without any, a sample of speech, or made-up sound if it cannot be fetched."""
    if not sources:
        return sample_material()
    clips: list[Samples] = []
    for source in sources:
        with Recording.open(source) as recording:
            clips += [piece.copy() for piece in recording.pieces(WINDOW_SAMPLES) if piece.size >= SHORTEST_CLIP]
        if len(clips) >= MOST_CLIPS:
            break
    if not clips:
        raise AudioEmpty("there is no second of sound in what was given: give a recording of speech")
    name = sources[0] if len(sources) == 1 else f"{len(sources)} files"
    return Material(name, tuple(clips[:MOST_CLIPS]), is_speech=True)


def sample_material() -> Material:
    from choral.remote import speech

    try:
        sample = speech.jfk()
    except DownloadFailed:
        return Material("made-up sound", (made_up(),), is_speech=False)
    with Recording.open(sample.path) as recording:
        return Material(sample.path.name, (recording.samples(0, WINDOW_SAMPLES).copy(),), is_speech=True)


def made_up() -> Samples:
    """A hum that swells and fades like syllables, and a hiss."""
    seconds = np.arange(MADE_UP_S * SAMPLE_RATE) / SAMPLE_RATE
    voice = sum(np.sin(2 * np.pi * 120 * overtone * seconds) / overtone for overtone in range(1, 20))
    syllables = np.maximum(0, np.sin(2 * np.pi * 0.4 * seconds)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * seconds))
    hiss = np.random.default_rng(0).normal(0, 0.003, seconds.size)
    return (0.2 * syllables * voice + hiss).astype(np.float32)
