"""Reconstruction: turns of the speakers of a recording from the local speakers of its windows.

Every frame is in several windows. Their mean says how many speak; the speakers are those that most windows, with the
highest probability, find active. The whole recording is handled in spans, so that memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.speakers.networks import Float32
from choral.speakers.segmentation import CENTER_S, FRAME_S, N_FRAMES, Bool, SegmentedWindow

SPAN_FRAMES = 1 << 16  # 18 minutes
# Below a half: a window hears a speaker who begins or ends at its edge less well than the windows around it do.
MIN_SPEECH = 0.4
MIN_OVERLAP = 0.3
MIN_PAUSE_S = 0.1  # a shorter one does not end a turn


@dataclass(frozen=True)
class PieceSpeaker:
    """Who a local speaker of a window is, in some of its frames."""

    local: int
    first: int
    stop: int
    speaker: int
    other: int  # the next most similar
    margin: float  # by which the first is more similar


def active_frames(
    windows: Sequence[SegmentedWindow], pieces_of: Callable[[int], Sequence[PieceSpeaker]], n_speakers: int
) -> Bool:
    """[frames of the recording, speakers], from the pieces of each window, by its index."""
    n_frames = windows[-1].first_frame + N_FRAMES
    active = np.zeros((n_frames, n_speakers), np.bool_)
    for start in range(0, n_frames, SPAN_FRAMES):
        stop = min(start + SPAN_FRAMES, n_frames)
        active[start:stop] = _active_span(windows, pieces_of, n_speakers, start, stop)
    return active


def _active_span(
    windows: Sequence[SegmentedWindow],
    pieces_of: Callable[[int], Sequence[PieceSpeaker]],
    n_speakers: int,
    start: int,
    stop: int,
) -> Bool:
    scores = np.zeros((stop - start, n_speakers), np.float32)
    speaking = np.zeros((stop - start, 2), np.float32)
    n_windows = np.zeros(stop - start, np.float32)
    for index, window in enumerate(windows):
        low, high = max(start, window.first_frame), min(stop, window.first_frame + N_FRAMES)
        if low >= high:
            continue
        here = slice(low - start, high - start)
        within = slice(low - window.first_frame, high - window.first_frame)
        n_windows[here] += 1
        speaking[here] += window.n_speaking[within]
        scores[here] += _window_scores(window, pieces_of(index), n_speakers)[within]
    speaking /= 255 * np.maximum(n_windows, 1)[:, None]
    n_speaking = (speaking[:, 0] > MIN_SPEECH).astype(int) + (speaking[:, 1] > MIN_OVERLAP)
    return _loudest(scores, n_speaking)


def _window_scores(window: SegmentedWindow, pieces: Sequence[PieceSpeaker], n_speakers: int) -> npt.NDArray[np.uint8]:
    """[frames, speakers]"""
    scores = np.zeros((N_FRAMES, n_speakers), np.uint8)
    is_taken = np.zeros((N_FRAMES, n_speakers), np.bool_)
    has_two = window.n_speaking[:, 1] > MIN_OVERLAP * 255
    for piece in sorted(pieces, key=lambda piece: -piece.margin):
        frames = np.arange(piece.first, piece.stop)
        probability = window.speakers[frames, piece.local]
        # Two who speak at once are not one person: the less certain is who it may be otherwise.
        is_other = is_taken[frames, piece.speaker] & has_two[frames] & (probability > MIN_OVERLAP * 255)
        speaker = np.where(is_other, piece.other, piece.speaker)
        scores[frames, speaker] = np.maximum(scores[frames, speaker], probability)
        is_taken[frames, speaker] |= probability > MIN_OVERLAP * 255
    return scores


def _loudest(scores: Float32, n_speaking: npt.NDArray[np.int64]) -> Bool:
    """The speakers with the highest scores, as many as speak, in each frame."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    return (ranks < n_speaking[:, None]) & (scores > 0)


def spans_of(active: npt.NDArray[np.bool_], duration_s: float) -> list[tuple[float, float]]:
    """The spans in seconds in which one speaker is active, without short pauses."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0))
    spans: list[tuple[float, float]] = []
    for first, stop in edges.reshape(-1, 2).tolist():
        # A frame stands for the time around its centre; what the first one misses at the start is too short to tell.
        start_s = 0.0 if first == 0 else (first - 0.5) * FRAME_S + CENTER_S
        end_s = min((stop - 0.5) * FRAME_S + CENTER_S, duration_s)
        if spans and start_s - spans[-1][1] < MIN_PAUSE_S:
            start_s = spans.pop()[0]
        if end_s > start_s:
            spans.append((start_s, end_s))
    return spans
