"""Names of the speakers of a recording: those of known voices, or names in the order in which they first speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from choral.diarization import EMBEDDING_SIZE, Diarization, Speaker

MIN_SIMILARITY = 0.5  # cosine, above which a speaker is taken for a known voice


def name_speakers(
    found: Diarization, voices: Mapping[str, Sequence[float]] | None, speaker_names: Sequence[str] = ()
) -> Diarization:
    """Speakers that are neither known nor named keep their numbers."""
    numbered = [speaker.name for speaker in found.speakers]
    names = match_voices(found.speakers, voices) if voices else dict(zip(numbered, speaker_names, strict=False))
    # A person may be called "Speaker 2": the second speaker is then another number.
    free = (name for name in map("Speaker {}".format, count(len(numbered) + 1)) if name not in names.values())
    for name in numbered:
        if name not in names:
            names[name] = next(free) if name in names.values() else name
    return found.renamed(names)


def match_voices(speakers: Sequence[Speaker], voices: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The voice of each speaker that is similar to one: the most similar pair first, and each only once."""
    known = np.array([*voices.values()])
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    similarities = np.array([speaker.embedding for speaker in speakers]).reshape(-1, EMBEDDING_SIZE) @ known.T
    order = np.dstack(np.unravel_index(np.argsort(-similarities, axis=None, kind="stable"), similarities.shape))[0]
    names: dict[str, str] = {}
    for row, column in order.tolist():
        speaker, name = speakers[row].name, [*voices][column]
        if similarities[row, column] >= MIN_SIMILARITY and speaker not in names and name not in names.values():
            names[speaker] = name
    return names
