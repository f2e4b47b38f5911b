"""The mel spectrogram against openai-whisper's: filters, whole files, windows cut from long recordings.

openai-whisper computes in float32, whose rounding shows in quiet bins beside loud ones, up to 4e-5 from its formula in
float64. So the exact comparison is with its code run in float64; of its float32 result, all but one value in ten
thousand must agree as closely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import whisper
import whisper.audio

from choral.audio.mel import log_mel, mel_filters, mel_peak
from choral.audio.recording import Recording
from media_files import read_clip

Samples = npt.NDArray[np.float32]
TOLERANCE = 1e-5
PADDING = 480_000


@pytest.fixture(scope="module")
def long_speech(speech_clips: list[Path]) -> Samples:
    """Over 70 s of speech with pauses of silence and of faint noise, ending within a frame."""
    noise = np.random.default_rng(0).normal(0, 20, 40_000).astype(np.int16)
    parts = [part for clip in speech_clips for part in (read_clip(clip), np.zeros(24_000, np.int16), noise)]
    whole = np.concatenate(parts)
    return np.resize(whole, 72 * 16_000 + 77).astype(np.float32) / 32768


@pytest.fixture
def reference_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """openai-whisper's function with doubles inside; its window and filters keep their float32 rounding."""
    hann_window, filters = torch.hann_window, whisper.audio.mel_filters
    monkeypatch.setattr(torch, "hann_window", lambda size: hann_window(size).double())
    monkeypatch.setattr(whisper.audio, "mel_filters", lambda device, n_mels: filters(device, n_mels).double())


def reference(samples: npt.NDArray[Any], n_mels: int, padding: int = PADDING) -> npt.NDArray[Any]:
    return np.asarray(whisper.log_mel_spectrogram(samples, n_mels, padding=padding))


def windows(recording: Recording, n_mels: int, n_frames: int) -> npt.NDArray[np.float32]:
    """The whole spectrogram, assembled from windows as the transcriber cuts them."""
    peak = mel_peak(recording, n_mels)
    parts = []
    for first in range(0, n_frames, 3_000):
        size, lead = min(3_000, n_frames - first), min(first * 160, 200)
        samples = recording.samples(first * 160 - lead, (first + size) * 160 + 200)
        parts.append(log_mel(samples, n_mels, lead=lead, n_frames=size, peak=peak))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters(n_mels: int) -> None:
    expected = whisper.audio.mel_filters("cpu", n_mels).numpy()
    np.testing.assert_allclose(mel_filters(n_mels), expected, rtol=0, atol=1e-7)


@pytest.mark.speech
@pytest.mark.usefixtures("reference_in_float64")
@pytest.mark.parametrize("n_mels", [80, 128])
def test_equals_openai_whisper_in_float64(speech_clips: list[Path], n_mels: int) -> None:
    for clip in speech_clips[:10]:
        samples = read_clip(clip).astype(np.float32) / 32768
        expected = reference(samples.astype(np.float64), n_mels)
        got = log_mel(samples, n_mels, n_frames=expected.shape[1])
        assert np.abs(got - expected).max() < TOLERANCE, clip


@pytest.mark.speech
@pytest.mark.usefixtures("reference_in_float64")
@pytest.mark.parametrize("n_mels", [80, 128])
def test_windows_equal_slices_of_the_whole_in_float64(long_speech: Samples, n_mels: int) -> None:
    expected = reference(long_speech.astype(np.float64), n_mels)
    got = windows(Recording.open(long_speech), n_mels, expected.shape[1])
    assert np.abs(got - expected).max() < TOLERANCE


@pytest.mark.speech
@pytest.mark.parametrize("n_mels", [80, 128])
def test_equals_openai_whisper_in_float32(long_speech: Samples, n_mels: int) -> None:
    expected = reference(long_speech, n_mels)
    distance = np.abs(windows(Recording.open(long_speech), n_mels, expected.shape[1]) - expected)
    assert np.mean(distance > TOLERANCE) < 1e-4
    assert distance.max() < 1e-4


@pytest.mark.speech
def test_default_peak_is_that_of_the_window(long_speech: Samples) -> None:
    window = long_speech[480_000:960_000]
    expected = reference(window, 80, padding=0)[:, :-2]  # without padding the reference mirrors the end too
    distance = np.abs(log_mel(window, 80, n_frames=3_000)[:, :-2] - expected)
    assert np.mean(distance > TOLERANCE) < 1e-4
    assert distance.max() < 1e-4


@pytest.mark.speech
@pytest.mark.parametrize("lead", [0, 1, 160, 199, 200, 320])
def test_reflection_with_any_lead(long_speech: Samples, lead: int) -> None:
    """Frames that reach before the first sample are reflected, wherever the window starts."""
    start = np.concatenate([long_speech[200:0:-1], long_speech])  # mirrored by hand
    got = log_mel(long_speech, 80, lead=lead, n_frames=10)
    expected = log_mel(start, 80, lead=lead + 200, n_frames=10)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_samples", [1, 100, 160, 199, 200, 201, 399, 400, 1_000])
def test_short_audio(n_samples: int) -> None:
    samples = np.random.default_rng(n_samples).normal(0, 0.1, n_samples).astype(np.float32)
    expected = reference(samples, 80)
    got = log_mel(samples, 80, n_frames=expected.shape[1])
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
    assert mel_peak(Recording.open(samples), 80) == pytest.approx(expected.max() * 4 - 4, abs=1e-5)


def test_silence() -> None:
    silence = np.zeros(50_000, np.float32)
    np.testing.assert_allclose(log_mel(silence, 80, n_frames=300), reference(silence, 80)[:, :300], atol=1e-6)
    assert mel_peak(Recording.open(silence), 80) == pytest.approx(-10, abs=2e-6)


def test_no_frames() -> None:
    assert log_mel(np.zeros(0, np.float32), 80, n_frames=0).shape == (80, 0)


@pytest.mark.parametrize("n_frames", [1, 2, 3, 255, 256, 257])
def test_frames_do_not_depend_on_their_number(n_frames: int) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 60_000).astype(np.float32)
    few = log_mel(samples, 80, n_frames=n_frames, peak=1.0)
    many = log_mel(samples, 80, n_frames=300, peak=1.0)
    np.testing.assert_allclose(few, many[:, :n_frames], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_mels", [40, 100, 256])
def test_other_numbers_of_mels(n_mels: int) -> None:
    mel = log_mel(np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32), n_mels, n_frames=100)
    assert mel.shape == (n_mels, 100)
    assert np.isfinite(mel).all()
