"""Voices as embeddings: 256 numbers that are near each other for one person, also across recordings.

They can be kept, compared (the product of two is their similarity) and given to later requests instead of clips. A
folder of clips has a file for each person, several with numbers at the end of their names, or a folder of files.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from choral.audio.recording import AudioInput, Recording
from choral.diarization import Speaker
from choral.errors import AudioError, AudioNotFound, NoSpeech, UsageError
from choral.storage import storage_errors

Embedding: TypeAlias = tuple[float, ...]
Clip: TypeAlias = AudioInput | Recording
Voices: TypeAlias = str | os.PathLike[str] | Mapping[str, Clip | Sequence[Clip] | Sequence[float]]

N_DIGITS = 6  # of the numbers of an embedding: shorter as JSON, and far finer than what tells voices apart
_NUMBER = re.compile(r"[-_ ]+\d+$")


def voice_embedding(audio: Clip) -> Embedding:
    """The voice of a clip, or of who speaks most in it. 256 numbers of unit length; about 5 s of speech are enough."""
    return _mean([main_speaker(audio)])


def read_voices(voices: Voices) -> dict[str, Embedding]:
    """The embedding of each name: from its clips, or as it was computed before."""
    if isinstance(voices, str | os.PathLike):
        voices = clips_of_folder(Path(voices))
    if not isinstance(voices, Mapping):
        raise UsageError(f"voices is a {type(voices).__name__}; it must be a folder, or clips by the name of the voice")
    return {name: _voice(name, given) for name, given in voices.items()}


def clips_of_folder(folder: Path) -> dict[str, list[Path]]:
    """The clips of each name; hidden files are left out."""
    if not folder.is_dir():
        raise AudioNotFound(f"{folder} is not a folder: give one with a clip of each known voice, such as Anna.wav")
    clips: dict[str, list[Path]] = defaultdict(list)
    with storage_errors(folder):
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and not any(part.startswith(".") for part in parts):
                clips[parts[0] if len(parts) > 1 else _NUMBER.sub("", path.stem)].append(path)
    if not clips:
        raise AudioNotFound(f"{folder} is empty: it needs a clip of each known voice, such as Anna.wav")
    return clips


def main_speaker(audio: Clip) -> Speaker:
    """Who speaks most; raises `NoSpeech` if nobody does."""
    from choral.speakers.diarize import diarize

    speakers = diarize(audio).speakers
    if not speakers:
        raise NoSpeech("no speech was found in this clip of a voice: give a few seconds of one person")
    return max(speakers, key=lambda speaker: speaker.total_s)


def _voice(name: str, given: Clip | Sequence[Clip] | Sequence[float]) -> Embedding:
    clips = given if isinstance(given, list | tuple) else [given]
    if clips and all(isinstance(each, int | float) for each in clips):
        return tuple(map(float, clips))
    if not clips:
        raise UsageError(f"voices has no clip of {name!r}")
    speakers = []
    for number, clip in enumerate(clips, start=1):
        try:
            speakers.append(main_speaker(clip))
        except AudioError as error:
            which = clip if isinstance(clip, str | os.PathLike) else f"clip {number}"
            error.args = (f"the voice of {name!r}, {which}: {error}",)
            raise
    return _mean(speakers)


def _mean(speakers: Sequence[Speaker]) -> Embedding:
    """By how long each speaks; of unit length."""
    total = sum(np.array(speaker.embedding) * speaker.total_s for speaker in speakers)
    return tuple(np.round(total / np.linalg.norm(total), N_DIGITS).tolist())
