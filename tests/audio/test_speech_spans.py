"""The rules for spans of speech, and that spans found step by step equal those of two passes over the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.audio.speech_spans import SpanFinder, SpeechSpan, SpeechTracker, speech_spans

PROBABILITIES = st.lists(st.sampled_from([0.1, 0.3, 0.4, 0.6, 0.9]) | st.floats(0, 1, width=32), max_size=100)
OPTIONS = st.fixed_dictionaries(
    {
        "threshold": st.floats(0, 1),
        "min_silence_s": st.floats(0, 0.5),
        "min_speech_s": st.floats(0, 0.3),
        "pad_s": st.floats(0, 0.5),
    }
)


def spans_of(probabilities: list[float], **options: float) -> list[tuple[int, int]]:
    """Spans in frames of 512 samples, without padding unless asked for."""
    given_options = {"threshold": 0.5, "min_silence_s": 0.064, "min_speech_s": 0.0, "pad_s": 0.0} | options
    found = speech_spans(np.array(probabilities, np.float32), 512 * len(probabilities), **given_options)
    return [(span.start // 512, span.stop // 512) for span in found]


SPANS = [
    ([0.1, 0.1, 0.1], []),
    ([0.9, 0.9, 0.9], [(0, 3)]),
    ([0.1, 0.9, 0.1, 0.1, 0.1], [(1, 2)]),
    ([0.1, 0.9, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1], [(1, 5)]),  # a silence too short to end the span
    ([0.1, 0.9, 0.4, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1], [(1, 6)]),  # between the thresholds: speech continues
    ([0.4, 0.4, 0.9], [(2, 3)]),  # between the thresholds: no speech starts
    ([0.9, 0.1, 0.4, 0.1, 0.9], [(0, 1), (4, 5)]),  # between the thresholds: the silence continues
    ([0.9, 0.1], [(0, 2)]),  # the recording ends before the silence is long enough
]


@pytest.mark.parametrize(("probabilities", "expected"), SPANS)
def test_span_rules(probabilities: list[float], expected: list[tuple[int, int]]) -> None:
    assert spans_of(probabilities) == expected


def test_short_speech_is_dropped() -> None:
    assert spans_of([0.9, 0.1, 0.1, 0.1, 0.9, 0.9, 0.1, 0.1, 0.1], min_speech_s=0.05) == [(4, 6)]


def test_padding_is_shared_between_neighbours() -> None:
    quiet, loud = [0.1] * 4, [0.9] * 2
    assert spans_of(quiet + loud + quiet + loud + quiet, pad_s=0.096) == [(1, 8), (8, 15)]


def spans_in_two_passes(
    probabilities: list[float],
    n_samples: int,
    *,
    threshold: float,
    min_silence_s: float,
    min_speech_s: float,
    pad_s: float,
) -> list[SpeechSpan]:
    """All runs of speech first, then their padding."""
    tracker = SpeechTracker(threshold, min_silence_s)
    runs = [run for run in map(tracker.step, probabilities) if run is not None]
    if tracker.first is not None:
        runs.append((tracker.first, len(probabilities)))
    spans = [(first * 512, min(stop * 512, n_samples)) for first, stop in runs]
    spans = [(start, stop) for start, stop in spans if stop - start >= min_speech_s * 16_000]
    starts, stops = [*(start for start, _ in spans), n_samples], [0, *(stop for _, stop in spans)]
    pauses = [start - stop for start, stop in zip(starts, stops, strict=True)]
    pad = int(pad_s * 16_000)
    shares = [min(pad, pauses[0]), *(min(pad, pause // 2) for pause in pauses[1:-1]), min(pad, pauses[-1])]
    return [SpeechSpan(start - shares[i], stop + shares[i + 1]) for i, (start, stop) in enumerate(spans)]


@given(PROBABILITIES, OPTIONS, st.integers(0, 511), st.integers(1, 20))
def test_spans_found_step_by_step_equal_two_passes(
    probabilities: list[float], options: dict[str, float], cut: int, n_at_once: int
) -> None:
    n_samples = max(len(probabilities) * 512 - cut, 0)
    expected = spans_in_two_passes(probabilities, n_samples, **options)
    assert speech_spans(np.array(probabilities, np.float64), n_samples, **options) == expected
    assert all(0 <= span.start < span.stop <= n_samples for span in expected)
    assert all(first.stop <= second.start for first, second in pairwise(expected))
    finder = SpanFinder(**options)
    found: list[SpeechSpan] = []
    n_whole = n_samples // 512
    for start in range(0, n_whole, n_at_once):
        found += finder.push(probabilities[start : min(start + n_at_once, n_whole)])
        assert all(span.start >= finder.min_next_start for span in expected[len(found) :])
    assert found + finder.finish(n_samples, probabilities[n_whole:]) == expected


@pytest.mark.parametrize(
    ("following", "n_frames"),
    [
        ([0.1] * 20, 4),  # two frames of padding cannot reach a span that starts four frames later or more
        ([0.1] * 3 + [0.9] * 20, 5),  # the next span is long enough after two frames
        ([0.1] * 3 + [0.9] + [0.1] * 20, 7),  # what began is too short, and ends where the padding cannot reach
    ],
)
def test_a_span_is_returned_once_it_is_final(following: list[float], n_frames: int) -> None:
    finder = SpanFinder(threshold=0.5, min_silence_s=0.064, min_speech_s=0.064, pad_s=0.064)
    assert finder.push([0.9] * 4) == []
    returned = [finder.push([probability]) for probability in following]
    assert [bool(spans) for spans in returned].index(True) + 1 == n_frames
