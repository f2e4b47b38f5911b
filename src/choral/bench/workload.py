"""The audio that engines are measured with: the user's files, or a sample of speech, or synthetic audio.

Windows, clips and long recordings are made from a few clips, each slightly different from the last, so that the encoder
cache never helps. Windows are views into one array: thousands take no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.recording import Recording
from choral.bench.clips import Samples
from choral.bench.synthetic_audio import synthetic_samples
from choral.engine.window import WindowAudio
from choral.errors import AudioEmpty, DownloadFailed

MAX_CLIPS = 64
MIN_CLIP_SAMPLES = SAMPLE_RATE
ROTATION = 8  # samples between one window of a clip and the next: half a millisecond
PAUSE_SAMPLES = SAMPLE_RATE // 2
SYNTHETIC_S = 11


@dataclass(frozen=True, eq=False)
class Workload:
    name: str
    clips: tuple[Samples, ...]  # of at most 30 s each
    is_speech: bool  # False: synthetic, which voice detection does not classify as speech

    @cached_property
    def _doubled(self) -> tuple[Samples, ...]:
        """Every clip twice, so that a rotated clip is a slice."""
        return tuple(np.concatenate([clip, clip]) for clip in self.clips)

    def window(self, number: int) -> WindowAudio:
        """The clips in turn, rotated by a few more samples with each repetition."""
        turn, index = divmod(number, len(self.clips))
        n_samples = self.clips[index].size
        start = turn * ROTATION % n_samples
        samples = self._doubled[index][start : start + n_samples]
        return WindowAudio(samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)

    def clip(self, number: int, seconds: float) -> Samples:
        """The first seconds of the first clip, with inaudible noise that depends on `number`."""
        samples = np.resize(self.clips[0], round(seconds * SAMPLE_RATE))
        return samples + np.random.default_rng(number).normal(0, 1e-4, samples.size).astype(np.float32)

    def long(self, seconds: float) -> npt.NDArray[np.int16]:
        """All clips repeated with pauses between them; noise makes every repetition different."""
        pause = np.zeros(PAUSE_SAMPLES, dtype=np.float32)
        once = np.concatenate([part for clip in self.clips for part in (clip, pause)])
        repeated = np.resize((once * 32_000).clip(-32_000, 32_000).astype(np.int16), round(seconds * SAMPLE_RATE))
        return repeated + np.random.default_rng(0).integers(-3, 4, repeated.size, dtype=np.int16)


def make_workload(sources: Sequence[str]) -> Workload:
    """The clips of these files; without any, a downloaded sample of speech, or synthetic audio where that fails."""
    if not sources:
        return default_workload()
    clips: list[Samples] = []
    for source in sources:
        with Recording.open(source) as recording:
            clips += [piece.copy() for piece in recording.pieces(WINDOW_SAMPLES) if piece.size >= MIN_CLIP_SAMPLES]
        if len(clips) >= MAX_CLIPS:
            break
    if not clips:
        raise AudioEmpty("the audio is shorter than a second: give a recording of speech")
    name = sources[0] if len(sources) == 1 else f"{len(sources)} files"
    return Workload(name, tuple(clips[:MAX_CLIPS]), is_speech=True)


def default_workload() -> Workload:
    from choral.remote import speech_samples

    try:
        sample = speech_samples.jfk()
    except DownloadFailed:
        return synthetic_workload()
    with Recording.open(sample.path) as recording:
        return Workload(sample.path.name, (recording.samples(0, WINDOW_SAMPLES).copy(),), is_speech=True)


def synthetic_workload() -> Workload:
    return Workload("synthetic audio", (synthetic_samples(0, SYNTHETIC_S, SAMPLE_RATE),), is_speech=False)
