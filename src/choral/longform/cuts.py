"""Which parts of a recording are decoded, and the windows that are cut from it.

Speech keeps its pauses, and short pauses do not end a clip: times stay those of the recording, and the model gets the
pauses that punctuation comes from. No window crosses the border of a requested clip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import HALF_FRAME, mel_peak, n_frames_covering
from choral.audio.recording import Recording
from choral.audio.vad import find_speech
from choral.engine.window import WindowAudio
from choral.types import TranscribeOptions

MAX_PAUSE_FRAMES = 2 * MEL_FRAMES_PER_SECOND  # a longer silence ends a clip
CUT_SEARCH_FRAMES = 8 * MEL_FRAMES_PER_SECOND  # before the limit, searched for the quietest position
QUIET_FRAMES = 20  # length of a quiet position


@dataclass(frozen=True)
class Clip:
    """A range of a recording, in mel frames."""

    start: int
    stop: int


def n_mel_frames(recording: Recording) -> int:
    return recording.n_samples // HOP_LENGTH


class Cutter:
    """Cuts windows whose features equal a slice of the whole recording's, which are scaled by its loudest mel value.

    That value needs a pass over the recording, made on first use. A window that contains the whole recording does
    without it: its own features have the value, and on a GPU they are computed there.
    """

    def __init__(self, recording: Recording, n_mels: int) -> None:
        self._recording, self._n_mels = recording, n_mels
        self._fits_window = n_frames_covering(recording.n_samples) <= WINDOW_MEL_FRAMES

    def cut(self, start: int, n_frames: int) -> WindowAudio:
        """The window at mel frame `start`."""
        first = start * HOP_LENGTH
        lead = min(first, HALF_FRAME)
        samples = self._recording.samples(first - lead, first + n_frames * HOP_LENGTH + HALF_FRAME)
        has_all = start == 0 and self._fits_window and samples.size == self._recording.n_samples
        return WindowAudio(samples, lead, n_frames, mel_peak=None if has_all else self._peak)

    def first_window(self) -> WindowAudio:
        """The first 30 s, padded with silence: where openai-whisper detects the language."""
        samples = self._recording.samples(0, WINDOW_SAMPLES + HALF_FRAME)
        return WindowAudio(samples, 0, WINDOW_MEL_FRAMES, mel_peak=None if self._fits_window else self._peak)

    @cached_property
    def _peak(self) -> float:
        return mel_peak(self._recording, self._n_mels)


def cut_padded(recording: Recording, start: int, n_frames: int) -> WindowAudio:
    """A range as a recording of its own: scaled by itself, padded with silence to 30 s."""
    first = start * HOP_LENGTH
    samples = recording.samples(first, first + n_frames * HOP_LENGTH)
    return WindowAudio(samples=samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def clips_from(seconds: tuple[float, ...], n_frames: int) -> list[Clip]:
    """`start,end,start,end,…` in seconds as clips; a missing last end is the recording's."""
    points = [min(round(second * MEL_FRAMES_PER_SECOND), n_frames) for second in seconds] or [0]
    if len(points) % 2 == 1:
        points.append(n_frames)
    pairs = zip(points[::2], points[1::2], strict=True)
    return [Clip(start, stop) for start, stop in pairs if start < stop]


def keep_speech(recording: Recording, clips: list[Clip], options: TranscribeOptions) -> list[list[Clip]]:
    """For each clip with speech by the voice detector, its parts with speech: padded, and joined over short pauses."""
    spans = find_speech(
        recording,
        threshold=options.vad_threshold,
        min_silence_s=options.vad_min_silence,
        pad_s=options.vad_padding,
    )
    joined: list[Clip] = []
    for span in spans:
        start, stop = span.start // HOP_LENGTH, -(-span.stop // HOP_LENGTH)
        if joined and start - joined[-1].stop < MAX_PAUSE_FRAMES:
            joined[-1] = Clip(joined[-1].start, stop)
        else:
            joined.append(Clip(start, stop))
    return [parts for parts in intersect(clips, joined) if parts]


def intersect(clips: list[Clip], spans: list[Clip]) -> Iterator[list[Clip]]:
    """The parts of each clip that lie in a span. Both are in order and do not overlap, so one pass is enough."""
    first = 0
    for clip in clips:
        while first < len(spans) and spans[first].stop <= clip.start:
            first += 1
        last = first
        while last < len(spans) and spans[last].start < clip.stop:
            last += 1
        yield [Clip(max(clip.start, span.start), min(clip.stop, span.stop)) for span in spans[first:last]]


def cut_to_windows(recording: Recording, parts: list[Clip]) -> list[Clip]:
    """Windows of at most 30 s over the parts of one clip: neighbours that fit share a window, with the pause between
    them; long parts are cut at quiet positions."""
    windows: list[Clip] = []
    for part in parts:
        if windows and part.stop - windows[-1].start <= WINDOW_MEL_FRAMES:
            windows[-1] = Clip(windows[-1].start, part.stop)
        else:
            windows += cut_long(recording, part)
    return windows


def cut_long(recording: Recording, clip: Clip) -> list[Clip]:
    parts = []
    start = clip.start
    while clip.stop - start > WINDOW_MEL_FRAMES:
        limit = start + WINDOW_MEL_FRAMES
        cut = quietest_frame(recording, limit - CUT_SEARCH_FRAMES, limit)
        parts.append(Clip(start, cut))
        start = cut
    return [*parts, Clip(start, clip.stop)]


def quietest_frame(recording: Recording, start: int, stop: int) -> int:
    """The middle of the quietest 0.2 s between two mel frames."""
    samples = recording.samples(start * HOP_LENGTH, stop * HOP_LENGTH)
    energy = np.square(samples.reshape(-1, HOP_LENGTH), dtype=np.float64).sum(axis=1)
    totals = np.convolve(energy, np.ones(QUIET_FRAMES), mode="valid")
    return start + int(totals.argmin()) + QUIET_FRAMES // 2
