"""Which parts of a recording hold speech, and where long speech may be cut into windows of 30 s.

Speech is kept with its pauses, and in one piece where the pause is short: times stay those of the recording, and
the model hears the pauses that punctuation comes from.
"""

from __future__ import annotations

import numpy as np

from choral.audio.constants import HOP_LENGTH, MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.audio.vad import find_speech
from choral.longform.cuts import Clip
from choral.types import TranscribeOptions

LONGEST_PAUSE = 2 * MEL_FRAMES_PER_SECOND  # a longer silence ends a clip
CUT_SEARCH = 8 * MEL_FRAMES_PER_SECOND  # how far before the limit a quiet place is looked for
QUIET = 20  # a quiet place is this many mel frames long


def keep_speech(recording: Recording, clips: list[Clip], options: TranscribeOptions) -> list[Clip]:
    """The parts of `clips` where the voice detector hears speech, joined over short pauses.

    The detector starts late and ends early, so some sound on both sides is kept.
    """
    speech = find_speech(
        recording,
        threshold=options.vad_threshold,
        min_silence_s=options.vad_min_silence,
        pad_s=options.vad_padding,
    )
    joined: list[Clip] = []
    for span in speech.spans:
        start, stop = span.start // HOP_LENGTH, -(-span.stop // HOP_LENGTH)
        if joined and start - joined[-1].stop < LONGEST_PAUSE:
            joined[-1] = Clip(joined[-1].start, stop)
        else:
            joined.append(Clip(start, stop))
    parts = [Clip(max(clip.start, part.start), min(clip.stop, part.stop)) for clip in clips for part in joined]
    return [part for part in parts if part.start < part.stop]


def cut_to_windows(recording: Recording, clips: list[Clip]) -> list[Clip]:
    """Clips of at most 30 s: neighbours share a window where they fit, long ones are cut at quiet places."""
    windows: list[Clip] = []
    for clip in clips:
        if windows and clip.stop - windows[-1].start <= WINDOW_MEL_FRAMES:
            windows[-1] = Clip(windows[-1].start, clip.stop)
        else:
            windows += cut_long(recording, clip)
    return windows


def cut_long(recording: Recording, clip: Clip) -> list[Clip]:
    parts = []
    start = clip.start
    while clip.stop - start > WINDOW_MEL_FRAMES:
        limit = start + WINDOW_MEL_FRAMES
        middle = quietest(recording, limit - CUT_SEARCH, limit)
        parts.append(Clip(start, middle))
        start = middle
    return [*parts, Clip(start, clip.stop)]


def quietest(recording: Recording, start: int, stop: int) -> int:
    """The middle of the quietest fifth of a second between two mel frames."""
    samples = recording.samples(start * HOP_LENGTH, stop * HOP_LENGTH)
    energy = np.square(samples.reshape(-1, HOP_LENGTH), dtype=np.float64).sum(axis=1)
    totals = np.convolve(energy, np.ones(QUIET), mode="valid")
    return start + int(totals.argmin()) + QUIET // 2
