"""The voice activity detector against faster-whisper, which runs the same model, and the rules for spans."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model
from hypothesis import given
from hypothesis import strategies as st

from choral.audio import vad
from choral.audio.recording import Recording
from choral.audio.vad import SpeechSpan, find_speech, speech_probabilities, speech_spans
from media_files import read_clip, wav


@pytest.fixture(scope="module")
def speech(speech_clips: list[Path]) -> np.ndarray:  # type: ignore[type-arg]
    """Clips of speech, two seconds of silence and two of noise after each."""
    noise = np.random.default_rng(0).normal(0, 60, 32_000).astype(np.int16)
    parts = [part for clip in speech_clips[:6] for part in (read_clip(clip), np.zeros(32_000, np.int16), noise)]
    return np.concatenate(parts)


@pytest.mark.speech
def test_probabilities_equal_faster_whisper(speech: np.ndarray) -> None:  # type: ignore[type-arg]
    got = speech_probabilities(Recording.open(speech))
    padded = np.pad(speech.astype(np.float32) / 32768, (0, 512 - len(speech) % 512))
    expected = get_vad_model()(padded)
    assert len(got) == -(-len(speech) // 512)
    # The peer wipes the end of the last frame.
    np.testing.assert_allclose(got[:-1], expected[: len(got) - 1], atol=1e-4)


@pytest.mark.speech
def test_probabilities_do_not_depend_on_pieces(
    speech: np.ndarray,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = speech_probabilities(Recording.open(speech))
    monkeypatch.setattr(vad, "PIECE_FRAMES", 37)
    in_pieces = speech_probabilities(Recording.open(wav(speech), max_memory_s=1))
    np.testing.assert_allclose(in_pieces, whole, atol=1e-5)


@pytest.mark.speech
@pytest.mark.parametrize(("threshold", "pad_s"), [(0.3, 0.2), (0.5, 0.0), (0.8, 0.6)])
@pytest.mark.parametrize("min_silence_s", [0.1, 0.5, 2.0])
def test_spans_equal_faster_whisper(
    speech: np.ndarray,  # type: ignore[type-arg]
    threshold: float,
    pad_s: float,
    min_silence_s: float,
) -> None:
    options = VadOptions(
        threshold=threshold,
        min_silence_duration_ms=int(min_silence_s * 1000),
        speech_pad_ms=int(pad_s * 1000),
        min_speech_duration_ms=int(vad.MIN_SPEECH_S * 1000),
    )
    expected = get_speech_timestamps(speech.astype(np.float32) / 32768, options)
    got = find_speech(Recording.open(speech), threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s)
    assert [(span.start, span.stop) for span in got] == [(span["start"], span["end"]) for span in expected]
    assert len(got) >= 1


def test_silence_and_noise_have_no_spans() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 160_000).astype(np.float32)
    for samples in (np.zeros(160_000, np.float32), noise):
        assert find_speech(Recording.open(samples), threshold=0.5, min_silence_s=0.5, pad_s=0.2) == []


def test_single_sample() -> None:
    assert speech_probabilities(Recording.open(np.zeros(1, np.float32))).shape == (1,)


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


@given(
    st.lists(st.floats(0, 1, width=32), max_size=200),
    st.floats(0, 1),
    st.floats(0, 0.5),
    st.floats(0, 0.3),
    st.floats(0, 0.5),
    st.integers(0, 511),
)
def test_spans_are_in_order_and_inside(
    probabilities: list[float], threshold: float, min_silence_s: float, min_speech_s: float, pad_s: float, cut: int
) -> None:
    n_samples = max(len(probabilities) * 512 - cut, 0)
    spans = speech_spans(
        np.array(probabilities, np.float32),
        n_samples,
        threshold=threshold,
        min_silence_s=min_silence_s,
        min_speech_s=min_speech_s,
        pad_s=pad_s,
    )
    assert all(isinstance(span, SpeechSpan) and 0 <= span.start < span.stop <= n_samples for span in spans)
    assert all(first.stop <= second.start for first, second in pairwise(spans))
