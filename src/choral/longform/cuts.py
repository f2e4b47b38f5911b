"""Cuts windows from a recording, and long speech into stretches that fit a window."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from choral.audio.constants import HOP_LENGTH, N_FFT, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import mel_peak, n_frames_covering
from choral.audio.recording import Recording
from choral.engine.window import WindowAudio

CONTEXT = N_FFT // 2  # how far a mel frame looks to either side of its centre


@dataclass(frozen=True)
class Clip:
    """A stretch of a recording, in mel frames."""

    start: int
    stop: int


def n_mel_frames(recording: Recording) -> int:
    return recording.n_samples // HOP_LENGTH


class Cutter:
    """Cuts windows whose features equal that slice of the whole recording's, which is scaled to its loudest place.

    The place is looked for when a window needs it. One that has all of the recording in it finds it by itself: then
    nothing is computed twice, and on a GPU nothing of it on the CPU.
    """

    def __init__(self, recording: Recording, n_mels: int) -> None:
        self._recording, self._n_mels = recording, n_mels
        self._fits_window = n_frames_covering(recording.n_samples) <= WINDOW_MEL_FRAMES

    def cut(self, start: int, n_frames: int) -> WindowAudio:
        """The window at mel frame `start`."""
        first = start * HOP_LENGTH
        lead = min(first, CONTEXT)
        samples = self._recording.samples(first - lead, first + n_frames * HOP_LENGTH + CONTEXT)
        has_all = start == 0 and self._fits_window and samples.size == self._recording.n_samples
        return WindowAudio(samples, lead, n_frames, mel_peak=None if has_all else self._peak)

    def opening(self) -> WindowAudio:
        """The first 30 s, silence after a shorter recording: where the reference detects the language."""
        samples = self._recording.samples(0, WINDOW_SAMPLES + CONTEXT)
        return WindowAudio(samples, 0, WINDOW_MEL_FRAMES, mel_peak=None if self._fits_window else self._peak)

    @cached_property
    def _peak(self) -> float:
        return mel_peak(self._recording, self._n_mels)


def cut_alone(recording: Recording, start: int, n_frames: int) -> WindowAudio:
    """A stretch as if it were a recording of its own, with silence up to 30 s."""
    first = start * HOP_LENGTH
    samples = recording.samples(first, first + n_frames * HOP_LENGTH)
    return WindowAudio(samples=samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def clips_from(seconds: tuple[float, ...], n_frames: int) -> list[Clip]:
    """`start,end,start,end,…` in seconds as clips; a missing last end is the recording's."""
    points = [min(round(second * 100), n_frames) for second in seconds] or [0]
    if len(points) % 2 == 1:
        points.append(n_frames)
    pairs = zip(points[::2], points[1::2], strict=True)
    return [Clip(start, stop) for start, stop in pairs if start < stop]
