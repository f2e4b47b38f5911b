"""Turns from windows of segmentation: pieces, frames, votes of windows, overlap and pauses."""

from __future__ import annotations

import numpy as np
import pytest

from choral.speakers import reconstruction
from choral.speakers.embedding import divide, frame_weights
from choral.speakers.reconstruction import PieceSpeaker, active_frames, spans_of
from choral.speakers.segmentation import CENTER_S, FRAME_S, N_FRAMES, POWERSET, STEP_FRAMES, SegmentedWindow


def window(first_frame: int, classes: np.ndarray) -> SegmentedWindow:
    """Certain of the class of each frame."""
    return SegmentedWindow.of(first_frame, np.log(np.eye(len(POWERSET))[classes] + 1e-6).astype(np.float32))


def whole(local: int, speaker: int, other: int = 0, margin: float = 0.5) -> PieceSpeaker:
    return PieceSpeaker(local, 0, N_FRAMES, speaker, other, margin)


def test_the_powerset_in_a_window() -> None:
    classes = np.arange(N_FRAMES) % len(POWERSET)
    found = window(0, classes)
    np.testing.assert_array_equal(found.active, POWERSET[classes])
    np.testing.assert_array_equal(found.speakers > 127, POWERSET[classes])
    np.testing.assert_array_equal(found.n_speaking > 127, POWERSET[classes].sum(axis=1)[:, None] >= [1, 2])


def test_local_speakers_of_windows_are_joined() -> None:
    """Local speaker 1 of the first window is local speaker 3 of the next."""
    first, second = np.zeros(N_FRAMES, int), np.zeros(N_FRAMES, int)
    first[200:] = 1
    second[200 - STEP_FRAMES : 500] = 3
    windows = [window(0, first), window(STEP_FRAMES, second)]
    active = active_frames(windows, [[whole(0, 1)], [whole(2, 1)]].__getitem__, 2)
    expected = np.zeros((STEP_FRAMES + N_FRAMES, 2), bool)
    expected[200 : STEP_FRAMES + 500, 1] = True
    np.testing.assert_array_equal(active, expected)


def test_spans_of_frames_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    windows = [window(i * STEP_FRAMES, generator.integers(0, 7, N_FRAMES)) for i in range(6)]
    pieces = [[whole(local, local) for local in range(3)]] * 6
    expected = active_frames(windows, pieces.__getitem__, 3)
    monkeypatch.setattr(reconstruction, "SPAN_FRAMES", 100)
    np.testing.assert_array_equal(active_frames(windows, pieces.__getitem__, 3), expected)


def test_two_who_speak_at_once_are_two() -> None:
    """Both sound like speaker 0: the less certain is the other one, but only where both speak."""
    classes = np.full(N_FRAMES, 1)
    classes[300:400] = 4
    classes[400:] = 2
    active = active_frames([window(0, classes)], [[whole(0, 0, 1, 0.5), whole(1, 0, 1, 0.1)]].__getitem__, 2)
    assert active[:, 0].all()
    np.testing.assert_array_equal(np.flatnonzero(active[:, 1]), np.arange(300, 400))


def test_a_local_speaker_may_be_two_persons() -> None:
    pieces = [PieceSpeaker(0, 0, 250, 1, 0, 0.5), PieceSpeaker(0, 250, N_FRAMES, 0, 1, 0.5)]
    active = active_frames([window(0, np.full(N_FRAMES, 1))], [pieces].__getitem__, 2)
    np.testing.assert_array_equal(active[:, 1], np.arange(N_FRAMES) < 250)
    np.testing.assert_array_equal(active[:, 0], np.arange(N_FRAMES) >= 250)


def test_spans_of_a_speaker() -> None:
    active = np.zeros(1_000, bool)
    active[:10] = active[100:200] = active[203:250] = active[990:] = True
    spans = spans_of(active, 16.0)
    times = [(100, 250), (990, 1_000)]
    expected = [((first - 0.5) * FRAME_S + CENTER_S, (stop - 0.5) * FRAME_S + CENTER_S) for first, stop in times]
    assert spans == [(0.0, pytest.approx(9.5 * FRAME_S + CENTER_S)), pytest.approx(expected[0])]  # the last is too late
    assert spans_of(active, 100.0)[-1] == pytest.approx(expected[1])
    assert spans_of(np.zeros(10, bool), 1.0) == []


def test_speech_is_divided_into_pieces() -> None:
    speech = np.zeros(N_FRAMES, bool)
    assert divide(speech) == []
    speech[10:40] = speech[60:130] = True  # a pause of 20 frames is within a piece
    speech[300:305] = True
    assert divide(speech) == [(10, 70), (70, 130), (300, 305)]
    assert divide(np.ones(N_FRAMES, bool))[0][0] == 0
    assert divide(np.ones(N_FRAMES, bool))[-1][1] == N_FRAMES


def test_weights_of_the_embedding_networks_frames() -> None:
    active = np.zeros(N_FRAMES, bool)
    assert frame_weights(0, active)[1].size == 0
    active[118:237] = True  # from 2.02 s to 4.03 s
    first, weights = frame_weights(16_000, active)
    assert first * 0.08 == pytest.approx(3.0, abs=0.1)
    assert weights.sum() * 0.08 == pytest.approx(119 * FRAME_S, abs=0.05)
    assert weights[1:-1].min() == 1
