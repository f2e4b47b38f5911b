"""Windows cut from a recording against the spectrogram of the whole of it, wherever its loudest place lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from choral.audio.mel import log_mel, mel_peak
from choral.audio.recording import Recording
from choral.longform.cuts import Cutter, n_mel_frames

RATE, N_MELS = 16_000, 80


def recording_of(n_samples: int, loudest: int, jfk: Path) -> Recording:
    with Recording.open(jfk) as speech:
        samples = np.resize(speech.samples(0, speech.n_samples), n_samples) * np.float32(0.01)
    samples[max(0, loudest - 20) : loudest + 1] = 1.0
    return Recording.open(samples)


# In the last two cases some frame that hears the end lies behind the window.
@pytest.mark.parametrize("n_samples", [8_000, 111_999, 112_000, 112_159, 30 * RATE - 200, 30 * RATE - 199, 30 * RATE])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_the_first_window_of_a_short_recording(jfk: Path, n_samples: int, place: float) -> None:
    recording = recording_of(n_samples, round(place * (n_samples - 1)), jfk)
    n_frames = n_mel_frames(recording)
    window = Cutter(recording, N_MELS).cut(0, n_frames)
    assert (window.mel_peak is None) == (n_samples + 200 <= 30 * RATE)
    whole = log_mel(recording.samples(0, n_samples), N_MELS, n_frames=n_frames, peak=mel_peak(recording, N_MELS))
    mel = window.log_mel(N_MELS)
    np.testing.assert_allclose(mel[:, :n_frames], whole, rtol=0, atol=1e-5)
    assert not mel[:, n_frames:].any()


@pytest.mark.parametrize("start", [1, 2, 300])
def test_later_windows_are_scaled_to_what_lies_before_them(jfk: Path, start: int) -> None:
    recording = recording_of(5 * RATE, 0, jfk)
    n_frames = n_mel_frames(recording) - start
    window = Cutter(recording, N_MELS).cut(start, n_frames)
    assert window.mel_peak == mel_peak(recording, N_MELS)
    whole = log_mel(recording.samples(0, 5 * RATE), N_MELS, n_frames=start + n_frames, peak=window.mel_peak)
    np.testing.assert_allclose(window.log_mel(N_MELS)[:, :n_frames], whole[:, start:], rtol=0, atol=1e-5)


def test_the_opening_is_scaled_to_all_of_a_long_recording(jfk: Path) -> None:
    recording = recording_of(40 * RATE, 40 * RATE - 1, jfk)
    assert Cutter(recording, N_MELS).first_window().mel_peak == mel_peak(recording, N_MELS)
