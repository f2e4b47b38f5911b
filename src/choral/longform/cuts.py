"""Cuts windows from a recording, and long speech into stretches that fit a window."""

from __future__ import annotations

from dataclasses import dataclass

from choral.audio.constants import HOP_LENGTH, N_FFT, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
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


def cut(recording: Recording, start: int, n_frames: int, peak: float | None) -> WindowAudio:
    """The window at mel frame `start`: its features equal that slice of the whole recording's."""
    first = start * HOP_LENGTH
    lead = min(first, CONTEXT)
    samples = recording.samples(first - lead, first + n_frames * HOP_LENGTH + CONTEXT)
    return WindowAudio(samples=samples, lead=lead, n_mel_frames=n_frames, mel_peak=peak)


def cut_alone(recording: Recording, start: int, n_frames: int) -> WindowAudio:
    """A stretch as if it were a recording of its own, with silence up to 30 s."""
    first = start * HOP_LENGTH
    samples = recording.samples(first, first + n_frames * HOP_LENGTH)
    return WindowAudio(samples=samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def opening(recording: Recording, peak: float | None) -> WindowAudio:
    """The first 30 s, silence after a shorter recording: where the reference detects the language."""
    samples = recording.samples(0, WINDOW_SAMPLES + CONTEXT)
    return WindowAudio(samples=samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=peak)


def clips_from(seconds: tuple[float, ...], n_frames: int) -> list[Clip]:
    """`start,end,start,end,…` in seconds as clips; a missing last end is the recording's."""
    points = [min(round(second * 100), n_frames) for second in seconds] or [0]
    if len(points) % 2 == 1:
        points.append(n_frames)
    pairs = zip(points[::2], points[1::2], strict=True)
    return [Clip(start, stop) for start, stop in pairs if start < stop]
