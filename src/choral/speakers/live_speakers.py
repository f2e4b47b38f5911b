"""Speakers of a conversation that is still going on: each finished turn goes to the most similar speaker so far.

A turn that is similar to none is a new speaker. What was decided does not change, so a recording that is complete is
better diarized as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.options import MAX_SPEAKERS
from choral.speakers.diarize import diarize_recording
from choral.speakers.networks import Float32, SpeakerNetworks

MIN_SIMILARITY = 0.4  # cosine; turns are shorter than the clips of known voices, and less similar
MIN_SPEECH_S = 1.0  # for a new speaker, and to change the mean of a known one
MAX_SAMPLES = 10 * SAMPLE_RATE  # of a turn, its last: one window of segmentation


@dataclass
class LiveSpeaker:
    name: str
    total: Float32  # the sum of embeddings, weighted by seconds of speech

    def similarity(self, embedding: Float32) -> float:
        return float(embedding @ self.total / np.linalg.norm(self.total))


class LiveSpeakers:
    def __init__(self, networks: SpeakerNetworks) -> None:
        self._networks = networks
        self._speakers: list[LiveSpeaker] = []

    def assign(self, samples: npt.NDArray[np.int16]) -> str | None:
        """Who speaks most in a turn; None if nobody does, or too little to tell."""
        with Recording.open(samples[-MAX_SAMPLES:]) as recording:
            found = diarize_recording(recording, self._networks).speakers
        if not found:
            return None
        main = max(found, key=lambda speaker: speaker.total_s)
        embedding = np.array(main.embedding, np.float32)
        nearest = max(self._speakers, key=lambda speaker: speaker.similarity(embedding), default=None)
        is_new = nearest is None or nearest.similarity(embedding) < MIN_SIMILARITY
        if main.total_s < MIN_SPEECH_S:
            return None if nearest is None else nearest.name
        if nearest is None or (is_new and len(self._speakers) < MAX_SPEAKERS):
            nearest = LiveSpeaker(f"Speaker {len(self._speakers) + 1}", np.zeros_like(embedding))
            self._speakers.append(nearest)
        nearest.total += embedding * main.total_s
        return nearest.name
