"""Segmentation: which of up to three speakers are active, frame by frame, in overlapping windows of 10 s.

For each frame the network has the probabilities of seven cases: nobody, one of three speakers, or two of them. Its
speakers are local: the first of one window may be the second of the next. Windows start on one grid of frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.speakers.networks import Float32, SpeakerNetworks

Bool = npt.NDArray[np.bool_]

WINDOW_SAMPLES = 10 * SAMPLE_RATE
FRAME_SAMPLES = 270  # from one frame to the next
RECEPTIVE_SAMPLES = 991  # that the first layers see for a frame
N_FRAMES = 1 + (WINDOW_SAMPLES - RECEPTIVE_SAMPLES) // FRAME_SAMPLES
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
CENTER_S = RECEPTIVE_SAMPLES / 2 / SAMPLE_RATE  # of the first frame
STEP_FRAMES = 119  # 2 s: five windows for each frame
N_LOCAL = 3
POWERSET = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.bool_)


@dataclass(frozen=True)
class SegmentedWindow:
    """Probabilities are kept in a byte each: a recording of ten hours has 18,000 windows."""

    first_frame: int  # of the recording
    speakers: npt.NDArray[np.uint8]  # [frames, 3]: that a local speaker speaks, 255 is certain
    n_speaking: npt.NDArray[np.uint8]  # [frames, 2]: that anybody speaks, that two speak
    classes: npt.NDArray[np.uint8]  # [frames]: the most probable case

    @classmethod
    def of(cls, first_frame: int, logits: Float32) -> SegmentedWindow:
        probabilities = np.exp(logits)
        sizes = POWERSET.sum(axis=1)
        at_least = np.stack([sizes >= 1, sizes >= 2], axis=1)
        return cls(
            first_frame,
            speakers=_to_bytes(probabilities @ POWERSET),
            n_speaking=_to_bytes(probabilities @ at_least),
            classes=logits.argmax(axis=1).astype(np.uint8),
        )

    @property
    def start_sample(self) -> int:
        return self.first_frame * FRAME_SAMPLES

    @property
    def active(self) -> Bool:
        """[frames, 3]: who speaks in the most probable case."""
        return POWERSET[self.classes]


def _to_bytes(probabilities: Float32) -> npt.NDArray[np.uint8]:
    levels: npt.NDArray[np.uint8] = np.rint(probabilities.clip(0, 1) * 255).astype(np.uint8)
    return levels


def segment_windows(recording: Recording, networks: SpeakerNetworks) -> Iterator[SegmentedWindow]:
    """In order. A recording that is still being decoded is read as far as a window needs."""
    first_frame, has_ended = 0, False
    while not has_ended:
        start = first_frame * FRAME_SAMPLES
        samples = recording.samples(start, start + WINDOW_SAMPLES)
        has_ended = recording.available(start + WINDOW_SAMPLES + 1) <= start + WINDOW_SAMPLES
        if samples.size < WINDOW_SAMPLES:
            samples = np.pad(samples, (0, WINDOW_SAMPLES - samples.size))
        yield SegmentedWindow.of(first_frame, networks.segment(samples))
        first_frame += STEP_FRAMES
