"""Conversations made of clips with transcripts: the samples, who speaks when, and which words each says.

A voice is the clips of one speaker, after LibriSpeech's names (`1688-142285-0000.flac` is of speaker 1688). Where more
voices are wanted than there are speakers, clips are played faster or slower, which changes pitch and formants too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.bench.audio_effects import another_voice, speech_level
from choral.bench.labelled_clips import LabelledClip
from choral.diarization import SpeakerTurn
from choral.errors import UsageError

Samples = npt.NDArray[np.float32]

TURN_S = (1.0, 15.0)
PAUSE_S = (0.1, 1.0)
OVERLAP_S = (0.3, 2.0)
OVERLAP_SHARE = 0.4  # of the turns that begin before the last one ends
LEVEL = 0.05  # of all voices, as the root of the mean square of their speech
LEVELS_DB = (-4.0, 4.0)  # by which a voice is louder or softer
FACTORS = (1.0, 0.86, 1.16)  # of speed: a voice and two that are made of it
MIN_CLIPS = 3  # of a voice
_SPEAKER = re.compile(r"^(\d+)-\d+-\d+$")


@dataclass(frozen=True)
class SpokenTurn:
    turn: SpeakerTurn
    words: tuple[str, ...]  # in lower case, without punctuation


@dataclass(frozen=True)
class MadeConversation:
    samples: Samples
    spoken: tuple[SpokenTurn, ...]  # by start

    @property
    def turns(self) -> tuple[SpeakerTurn, ...]:
        return tuple(each.turn for each in self.spoken)

    @property
    def duration(self) -> float:
        return self.samples.size / SAMPLE_RATE


@dataclass
class ClipVoice:
    name: str
    clips: list[LabelledClip]
    factor: float
    n_used: int = 0
    cache: dict[Path, Samples] = field(default_factory=dict)

    def next_clip(self) -> tuple[Samples, tuple[str, ...]]:
        """The clips in order, from the start again after the last."""
        clip = self.clips[self.n_used % len(self.clips)]
        self.n_used += 1
        if clip.path not in self.cache:
            samples = another_voice(_read(clip.path), self.factor)
            self.cache[clip.path] = (samples * (LEVEL / speech_level(samples))).astype(np.float32)
        return self.cache[clip.path], words_of(clip.text)


def words_of(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower().replace("'", "")))


def clip_voices(corpus: Sequence[LabelledClip], n_voices: int, rng: Generator) -> list[ClipVoice]:
    """Different speakers first, in random order, then those that are made of them."""
    by_speaker: dict[str, list[LabelledClip]] = defaultdict(list)
    for clip in corpus:
        speaker = _SPEAKER.match(clip.path.stem)
        if speaker and TURN_S[0] <= _duration_s(clip.path) <= TURN_S[1]:
            by_speaker[speaker[1]].append(clip)
    names = [name for name, clips in by_speaker.items() if len(clips) >= MIN_CLIPS]
    voices = []
    for factor in FACTORS:
        for name in rng.permutation(names).tolist():
            clips = [by_speaker[name][index] for index in rng.permutation(len(by_speaker[name]))]
            voices.append(ClipVoice(f"{name} at {factor:g}" if factor != 1 else name, clips, factor))
    if len(voices) < n_voices:
        raise UsageError(f"the folder has clips of {len(names)} speakers, for {len(voices)} voices; {n_voices} wanted")
    return voices[:n_voices]


def make_conversation(
    voices: Sequence[ClipVoice], seconds: float, has_overlap: bool, rng: Generator
) -> MadeConversation:
    """Turns in random order, none after one of the same voice, until the length is reached and all have spoken."""
    gains = 10 ** (rng.uniform(*LEVELS_DB, len(voices)) / 20)
    mixed = np.zeros(round((seconds + len(voices) * (TURN_S[1] + PAUSE_S[1])) * 2 * SAMPLE_RATE), np.float32)
    spoken: list[SpokenTurn] = []
    order = rng.permutation(len(voices)).tolist()
    last, last_start, end = -1, 0, 0
    while order or end < seconds * SAMPLE_RATE:
        index = (
            order.pop()
            if order
            else int(rng.choice([each for each in range(len(voices)) if each != last or len(voices) == 1]))
        )
        samples, words = voices[index].next_clip()
        start = end + round(rng.uniform(*PAUSE_S) * SAMPLE_RATE)
        if has_overlap and spoken and len(voices) > 1 and rng.random() < OVERLAP_SHARE:
            shared = min(round(rng.uniform(*OVERLAP_S) * SAMPLE_RATE), samples.size // 2, (end - last_start) // 2)
            start = end - shared
        mixed[start : start + samples.size] += gains[index] * samples
        turn = SpeakerTurn(start / SAMPLE_RATE, (start + samples.size) / SAMPLE_RATE, voices[index].name)
        spoken.append(SpokenTurn(turn, words))
        last, last_start, end = index, start, start + samples.size
    samples = mixed[: end + SAMPLE_RATE // 2]
    return MadeConversation(samples / max(1.0, float(np.abs(samples).max())), tuple(spoken))


def _read(path: Path) -> Samples:
    with Recording.open(path) as recording:
        return recording.samples(0, recording.n_samples).copy()


def _duration_s(path: Path) -> float:
    with Recording.open(path) as recording:
        return recording.n_samples / SAMPLE_RATE
