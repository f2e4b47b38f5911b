"""Progress of a transcription: how many seconds of the recording are done, of how many.

Until the recording is decoded and all its speech is found, both numbers are estimates. The first never decreases and
ends at the duration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.audio.recording import Recording
from choral.longform.cuts import Clip

MIN_UNKNOWN_S = 1.0  # assumed to follow while not all is found: a report that all is done must be true
OnProgress = Callable[[float, float], None]  # seconds done, total seconds


class ProgressReporter:
    def __init__(self, recording: Recording, on_progress: OnProgress | None) -> None:
        self._recording, self._on_progress = recording, on_progress
        self._done_frames = self._found_frames = 0
        self._found_until_s = 0.0
        self._is_all_found = False
        self._done_s = 0.0

    def add(self, clips: Sequence[Clip]) -> None:
        """More clips to decode, in order."""
        self._found_frames += sum(clip.stop - clip.start for clip in clips)
        self._found_until_s = clips[-1].stop / MEL_FRAMES_PER_SECOND

    def all_found(self) -> None:
        """No more clips: silence after the last one is done when they are. The recording is complete."""
        self._is_all_found = True

    def advance(self, n_frames: int) -> None:
        self._done_frames += n_frames

    def report(self) -> None:
        if self._on_progress is not None:
            min_total_s = self._found_until_s + (0.0 if self._is_all_found else MIN_UNKNOWN_S)
            total_s = max(self._recording.estimated_duration or 0.0, min_total_s)
            found_s = total_s if self._is_all_found else self._found_until_s
            self._done_s = max(self._done_s, found_s * self._done_frames / self._found_frames)
            self._on_progress(self._done_s, total_s)

    def finish(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._recording.duration, self._recording.duration)
