"""Recordings whose use ends soon after somebody asked for it, wherever the work on them is just then.

Decoding asks after every piece, and whatever comes behind it (the voice detector, mel features, every window) has to
read samples: those are the places where `Stopped` is raised.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from choral.audio.recording import AudioInput, Recording
from choral.audio.samples import Samples


class Stopped(Exception):
    """Nobody wants the result any more."""


def open_until(wanted_no_more: threading.Event, audio: AudioInput, *, max_memory_s: float) -> Recording:
    """The recording of this audio, for as long as the event is not set."""

    def check(*_: object) -> None:
        if wanted_no_more.is_set():
            raise Stopped

    recording = Recording.open(audio, on_progress=check, max_memory_s=max_memory_s)
    stop_with(wanted_no_more, recording)
    return recording


def stop_with(wanted_no_more: threading.Event, recording: Recording) -> None:
    """Reading from this recording raises `Stopped` once the event is set."""
    recording.read_through(lambda samples: _SamplesUntil(wanted_no_more, samples))


class _SamplesUntil:
    def __init__(self, wanted_no_more: threading.Event, samples: Samples) -> None:
        self._wanted_no_more, self._samples = wanted_no_more, samples

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        if self._wanted_no_more.is_set():
            raise Stopped
        return self._samples.read(start, stop)

    def close(self) -> None:
        self._samples.close()
