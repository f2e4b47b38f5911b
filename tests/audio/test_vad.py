"""The voice activity detector against faster-whisper, which runs the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

from choral.audio import vad
from choral.audio.recording import Recording
from choral.audio.speech_spans import MIN_SPEECH_S
from choral.audio.vad import SpeechFinder, find_speech, speech_probabilities
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
        min_speech_duration_ms=int(MIN_SPEECH_S * 1000),
    )
    expected = get_speech_timestamps(speech.astype(np.float32) / 32768, options)
    got = find_speech(Recording.open(speech), threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s)
    assert [(span.start, span.stop) for span in got] == [(span["start"], span["end"]) for span in expected]
    assert len(got) >= 1


@pytest.mark.speech
def test_spans_are_found_while_samples_arrive(speech: np.ndarray) -> None:  # type: ignore[type-arg]
    samples = speech.astype(np.float32) / 32768
    expected = find_speech(Recording.open(samples), threshold=0.5, min_silence_s=0.5, pad_s=0.2)
    finder = SpeechFinder(threshold=0.5, min_silence_s=0.5, pad_s=0.2)
    found, waits = [], []
    for start in range(0, samples.size, 1_000):
        n_received = min(start + 1_000, samples.size)
        new = finder.push(samples[start:n_received])
        waits += [n_received - span.stop for span in new]
        found += new
        assert all(span.stop <= finder.min_next_start for span in found)
    assert found + finder.finish() == expected
    assert len(found) >= 4
    assert max(waits) < 16_000  # 0.5 s of silence, the frame that is not complete yet, and the piece


def test_silence_and_noise_have_no_spans() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 160_000).astype(np.float32)
    for samples in (np.zeros(160_000, np.float32), noise):
        assert find_speech(Recording.open(samples), threshold=0.5, min_silence_s=0.5, pad_s=0.2) == []


def test_single_sample() -> None:
    assert speech_probabilities(Recording.open(np.zeros(1, np.float32))).shape == (1,)
