"""The sets of `choral bench wer`: the clips of a corpus, recordings made from them, and sounds without speech.

`mixed` joins clips of different speakers with pauses; `noise`, `music`, `telephone`, `far` and `fast` are `mixed` under
harder conditions; `non-speech` has no words, so every word of a transcript is invented. A seed gives the same samples
everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from choral.audio.constants import SAMPLE_RATE, WINDOW_SAMPLES
from choral.bench.audio_effects import (
    NON_SPEECH,
    Effect,
    Generator,
    add_music,
    add_noise,
    another_voice,
    far,
    fast,
    telephone,
)
from choral.bench.clips import AudioClip, Samples, read_samples
from choral.bench.labelled_clips import LabelledClip
from choral.errors import AudioNotFound

PAUSES_S = (0.3, 2.5)
VOICES = (0.92, 1.08)  # of clips that come again
EFFECTS: dict[str, Effect] = {
    "noise": add_noise,
    "music": add_music,
    "telephone": telephone,
    "far": far,
    "fast": fast,
}
NON_SPEECH_SET = "non-speech"
SET_NAMES = ("clips", "mixed", *EFFECTS, NON_SPEECH_SET)


@dataclass(frozen=True, eq=False)
class SetClip:
    name: str
    audio: AudioClip


def set_clips(name: str, corpus: Sequence[LabelledClip], seconds: float, seed: int = 1) -> Iterator[SetClip]:
    """The clips of a set, read or made one at a time; `seconds` is the length of all that is made."""
    if name == "clips":
        for clip in corpus:
            yield SetClip(clip.name, AudioClip(read_samples(clip.path), clip.text, clip.language))
    elif name == NON_SPEECH_SET:
        yield from non_speech(seconds, seed)
    else:
        yield SetClip(name, made_recording(name, corpus, seconds, seed))


def made_recording(name: str, corpus: Sequence[LabelledClip], seconds: float, seed: int) -> AudioClip:
    plain = mixed(corpus, seconds, np.random.default_rng(seed))
    effect = EFFECTS.get(name)
    if effect is None:
        return plain
    return AudioClip(effect(plain.samples, np.random.default_rng([seed, 1])), plain.text, plain.language)


def mixed(corpus: Sequence[LabelledClip], seconds: float, rng: Generator) -> AudioClip:
    """Clips of the corpus's main language in random order with pauses; a clip that comes again has another voice."""
    language = Counter(clip.language for clip in corpus).most_common(1)[0][0]
    chosen = [clip for clip in corpus if clip.language == language]
    pieces: list[Samples] = []
    texts: list[str] = []
    n_left = round(seconds * SAMPLE_RATE)
    for samples, text in shuffled(chosen, rng):
        pause = np.zeros(round(rng.uniform(*PAUSES_S) * SAMPLE_RATE), np.float32)
        pieces += [samples, pause]
        texts.append(text)
        n_left -= samples.size + pause.size
        if n_left <= 0:
            break
    return AudioClip(np.concatenate(pieces), " ".join(texts), language)


def shuffled(clips: Sequence[LabelledClip], rng: Generator) -> Iterator[tuple[Samples, str]]:
    """Clips of at most 30 s without end, in a new order each time."""
    is_repeated = False
    while True:
        has_any = False
        for index in rng.permutation(len(clips)):
            samples = read_samples(clips[index].path)
            if samples.size > WINDOW_SAMPLES:
                continue
            has_any = True
            yield another_voice(samples, rng.uniform(*VOICES)) if is_repeated else samples, clips[index].text
        if not has_any:
            raise AudioNotFound("there is no clip of at most 30 s to join: choose another folder")
        is_repeated = True


def non_speech(seconds: float, seed: int = 1) -> Iterator[SetClip]:
    """An equal part of each sound."""
    n_samples = round(seconds / len(NON_SPEECH) * SAMPLE_RATE)
    for number, (name, make) in enumerate(NON_SPEECH.items()):
        samples = make(n_samples, np.random.default_rng([seed, number]))
        yield SetClip(name, AudioClip(samples, "", "en"))
