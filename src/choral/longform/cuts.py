"""Clips of a recording, and windows that are cut from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import HALF_FRAME, mel_peak
from choral.audio.recording import Recording
from choral.engine.window import WindowAudio

NO_END = sys.maxsize  # of a clip that ends with the recording, while its length is not known
QUIET_FRAMES = 20  # length of a quiet position
MAX_QUIET_RATIO = 2.0  # 3 dB: positions this much louder than the quietest are as good
MAX_FITTING_SAMPLES = WINDOW_SAMPLES - HALF_FRAME  # all frames that cover them are in one window


@dataclass(frozen=True)
class Clip:
    """A range of a recording, in mel frames."""

    start: int
    stop: int


def n_mel_frames(recording: Recording) -> int:
    return recording.n_samples // HOP_LENGTH


def available_frames(recording: Recording, n_frames: int) -> int:
    """The smaller of `n_frames` and those of the recording; does not wait for its end."""
    return recording.available(n_frames * HOP_LENGTH) // HOP_LENGTH


class Cutter:
    """Cuts windows whose features equal a slice of the whole recording's, which are scaled by its loudest mel value.

    That value needs a pass over the recording, made on first use. A window that contains the whole recording does
    without it: its own features have the value, and on a GPU they are computed there.
    """

    def __init__(self, recording: Recording, n_mels: int) -> None:
        self._recording, self._n_mels = recording, n_mels
        self.fits_window = recording.available(MAX_FITTING_SAMPLES + 1) <= MAX_FITTING_SAMPLES

    def cut(self, start: int, n_frames: int) -> WindowAudio:
        """The window at mel frame `start`."""
        first = start * HOP_LENGTH
        lead = min(first, HALF_FRAME)
        samples = self._recording.samples(first - lead, first + n_frames * HOP_LENGTH + HALF_FRAME)
        has_all = start == 0 and self.fits_window and samples.size == self._recording.n_samples
        return WindowAudio(samples, lead, n_frames, mel_peak=None if has_all else self.peak)

    def first_window(self) -> WindowAudio:
        """The first 30 s, padded with silence: where openai-whisper detects the language."""
        samples = self._recording.samples(0, WINDOW_SAMPLES + HALF_FRAME)
        return WindowAudio(samples, 0, WINDOW_MEL_FRAMES, mel_peak=None if self.fits_window else self.peak)

    @cached_property
    def peak(self) -> float:
        return mel_peak(self._recording, self._n_mels)


def cut_padded(recording: Recording, start: int, n_frames: int) -> WindowAudio:
    """A range as a recording of its own: scaled by itself, padded with silence to 30 s."""
    first = start * HOP_LENGTH
    samples = recording.samples(first, first + n_frames * HOP_LENGTH)
    return WindowAudio(samples=samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def clips_from(seconds: tuple[float, ...], n_frames: int) -> list[Clip]:
    """`start,end,start,end,…` in seconds as clips within `n_frames`, where a missing last end is."""
    points = [min(round(second * MEL_FRAMES_PER_SECOND), n_frames) for second in seconds] or [0]
    if len(points) % 2 == 1:
        points.append(n_frames)
    pairs = zip(points[::2], points[1::2], strict=True)
    return [Clip(start, stop) for start, stop in pairs if start < stop]


def intersect(clips: Sequence[Clip], spans: Sequence[Clip]) -> Iterator[list[Clip]]:
    """The parts of each clip that lie in a span. Both are in order and do not overlap, so one pass is enough."""
    first = 0
    for clip in clips:
        while first < len(spans) and spans[first].stop <= clip.start:
            first += 1
        last = first
        while last < len(spans) and spans[last].start < clip.stop:
            last += 1
        yield [Clip(max(clip.start, span.start), min(clip.stop, span.stop)) for span in spans[first:last]]


def quietest_frame(recording: Recording, start: int, stop: int) -> int:
    """The middle of the last pause between two mel frames: 0.2 s or more about as quiet as the quietest."""
    samples = recording.samples(start * HOP_LENGTH, stop * HOP_LENGTH)
    energy = np.square(samples.reshape(-1, HOP_LENGTH), dtype=np.float64).sum(axis=1)
    totals = np.convolve(energy, np.ones(QUIET_FRAMES), mode="valid")
    quiet = np.flatnonzero(totals <= MAX_QUIET_RATIO * totals.min())
    first = quiet[np.flatnonzero(np.diff(quiet, prepend=-2) > 1)[-1]]
    return start + int(first + quiet[-1] + QUIET_FRAMES) // 2
