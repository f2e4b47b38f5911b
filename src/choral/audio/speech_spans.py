"""Spans of speech from the voice detector's probabilities, found while the probabilities arrive.

Speech starts at a threshold and ends where the probability stays below a lower one for some time. Short speech is
dropped; the rest is padded on both sides, and neighbours share the pause between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE

FRAME_SAMPLES = 512  # the voice detector has one probability per 32 ms

HYSTERESIS = 0.15  # speech ends where the probability falls this far below the threshold
MIN_END_THRESHOLD = 0.01
MIN_SPEECH_S = 0.1


@dataclass(frozen=True)
class SpeechSpan:
    """Samples `start` up to, not including, `stop`."""

    start: int
    stop: int


def speech_spans(
    probabilities: npt.NDArray[np.float32],
    n_samples: int,
    *,
    threshold: float,
    min_silence_s: float,
    pad_s: float,
    min_speech_s: float = MIN_SPEECH_S,
) -> list[SpeechSpan]:
    """The spans of a whole recording, in order; only its last frame may be incomplete."""
    finder = SpanFinder(threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s, min_speech_s=min_speech_s)
    return finder.finish(n_samples, probabilities.tolist())


class SpanFinder:
    """Returns each span once it is final: the next one has certainly begun, or is too far away to share a pause."""

    def __init__(
        self, *, threshold: float, min_silence_s: float, pad_s: float, min_speech_s: float = MIN_SPEECH_S
    ) -> None:
        self._tracker = SpeechTracker(threshold, min_silence_s)
        self._min_speech_samples = min_speech_s * SAMPLE_RATE
        self._pad = int(pad_s * SAMPLE_RATE)
        self._last_stop: int | None = None  # where the last span that is long enough ended, before padding
        self._pending: SpeechSpan | None = None  # that span if it has not been returned: padded only at its start

    def push(self, probabilities: Iterable[float]) -> list[SpeechSpan]:
        """The spans that became final, given the probabilities of the next whole frames."""
        return self._track(probabilities) + self._settle()

    def finish(self, n_samples: int, probabilities: Iterable[float] = ()) -> list[SpeechSpan]:
        """The remaining spans of a recording of `n_samples`; the last probability may be of an incomplete frame."""
        found = self._track(probabilities)
        if self._tracker.first is not None:
            stop = min(self._tracker.n_frames * FRAME_SAMPLES, n_samples)
            found += self._add(self._tracker.first * FRAME_SAMPLES, stop)
        if self._last_stop is not None:
            found += self._release(min(self._pad, n_samples - self._last_stop))
        return found

    @property
    def min_next_start(self) -> int:
        """No span that is still to be returned starts before this sample."""
        if self._pending is not None:
            return self._pending.start
        return self._next_start - self._share_before(self._next_start)

    @property
    def open_span(self) -> SpeechSpan | None:
        """The next span to be returned, if it has certainly begun: its start is final, its stop can only grow."""
        if self._pending is not None:
            return self._pending
        return SpeechSpan(self.min_next_start, self._min_run_stop) if self._is_next_certain() else None

    @property
    def _next_start(self) -> int:
        """The first sample where a run that has not ended can start."""
        first = self._tracker.n_frames if self._tracker.first is None else self._tracker.first
        return first * FRAME_SAMPLES

    def _track(self, probabilities: Iterable[float]) -> list[SpeechSpan]:
        """The spans that are final because a run of speech after them has ended."""
        runs = [run for run in map(self._tracker.step, probabilities) if run is not None]
        return [span for first, stop in runs for span in self._add(first * FRAME_SAMPLES, stop * FRAME_SAMPLES)]

    def _add(self, start: int, stop: int) -> list[SpeechSpan]:
        """Takes a run of speech that has ended, and returns the span before it."""
        if stop - start < self._min_speech_samples:
            return []
        share = self._share_before(start)
        found = self._release(share)
        self._pending = SpeechSpan(start - share, stop)
        self._last_stop = stop
        return found

    def _settle(self) -> list[SpeechSpan]:
        """The pending span, if nothing that follows can change it."""
        if self._pending is None:
            return []
        share = self._share_before(self._next_start)
        return self._release(share) if share == self._pad or self._is_next_certain() else []

    def _is_next_certain(self) -> bool:
        """Whether the current run is long enough, however it goes on."""
        if self._tracker.first is None:
            return False
        return self._min_run_stop - self._tracker.first * FRAME_SAMPLES >= self._min_speech_samples

    @property
    def _min_run_stop(self) -> int:
        """The sample before which the current run does not end."""
        quiet_from = self._tracker.quiet_from
        return (self._tracker.n_frames if quiet_from is None else quiet_from) * FRAME_SAMPLES

    def _share_before(self, start: int) -> int:
        """How far the padding of a span that starts here reaches back, and that of the span before it forward."""
        if self._last_stop is None:
            return min(self._pad, start)  # no neighbour to share with
        return min(self._pad, (start - self._last_stop) // 2)

    def _release(self, share: int) -> list[SpeechSpan]:
        """The pending span, if there is one, with its padding at the end."""
        pending, self._pending = self._pending, None
        return [] if pending is None else [SpeechSpan(pending.start, pending.stop + share)]


class SpeechTracker:
    """Finds runs of speech, frame by frame."""

    def __init__(self, threshold: float, min_silence_s: float) -> None:
        self._threshold = threshold
        self._end_threshold = max(threshold - HYSTERESIS, MIN_END_THRESHOLD)
        self._min_silence_frames = min_silence_s * SAMPLE_RATE / FRAME_SAMPLES
        self.n_frames = 0
        self.first: int | None = None  # of the current run of speech
        self.quiet_from: int | None = None  # where the current run may have ended

    def step(self, probability: float) -> tuple[int, int] | None:
        """The run that ends with this frame, if one does: its first frame and the frame after its last."""
        frame, self.n_frames = self.n_frames, self.n_frames + 1
        if probability >= self._threshold:
            self.first = frame if self.first is None else self.first
            self.quiet_from = None
        elif self.first is not None and probability < self._end_threshold:
            self.quiet_from = frame if self.quiet_from is None else self.quiet_from
            if frame - self.quiet_from >= self._min_silence_frames:
                run = self.first, self.quiet_from
                self.end_run()
                return run
        return None

    def end_run(self) -> None:
        self.first = self.quiet_from = None

    @property
    def n_quiet_frames(self) -> int:
        """Since the current run of speech may have ended."""
        return 0 if self.quiet_from is None else self.n_frames - self.quiet_from
