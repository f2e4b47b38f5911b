"""Windows against slices of the whole spectrogram, wherever its peak is; clips and where they are cut."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from choral.audio.mel import log_mel, mel_peak
from choral.audio.recording import Recording
from choral.longform.cuts import Clip, Cutter, clips_from, intersect, n_mel_frames

RATE, N_MELS = 16_000, 80


def recording_of(n_samples: int, loudest: int, jfk: Path) -> Recording:
    with Recording.open(jfk) as speech:
        samples = np.resize(speech.samples(0, speech.n_samples), n_samples) * np.float32(0.01)
    samples[max(0, loudest - 20) : loudest + 1] = 1.0
    return Recording.open(samples)


# In the last two cases a frame that covers the end is outside the window.
@pytest.mark.parametrize("n_samples", [8_000, 111_999, 112_000, 112_159, 30 * RATE - 200, 30 * RATE - 199, 30 * RATE])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_first_window_of_a_short_recording(jfk: Path, n_samples: int, place: float) -> None:
    recording = recording_of(n_samples, round(place * (n_samples - 1)), jfk)
    n_frames = n_mel_frames(recording)
    window = Cutter(recording, N_MELS).cut(0, n_frames)
    assert (window.mel_peak is None) == (n_samples + 200 <= 30 * RATE)
    whole = log_mel(recording.samples(0, n_samples), N_MELS, n_frames=n_frames, peak=mel_peak(recording, N_MELS))
    mel = window.log_mel(N_MELS)
    np.testing.assert_allclose(mel[:, :n_frames], whole, rtol=0, atol=1e-5)
    assert not mel[:, n_frames:].any()


@pytest.mark.parametrize("start", [1, 2, 300])
def test_later_window_uses_the_peak_of_the_recording(jfk: Path, start: int) -> None:
    recording = recording_of(5 * RATE, 0, jfk)
    n_frames = n_mel_frames(recording) - start
    window = Cutter(recording, N_MELS).cut(start, n_frames)
    assert window.mel_peak == mel_peak(recording, N_MELS)
    whole = log_mel(recording.samples(0, 5 * RATE), N_MELS, n_frames=start + n_frames, peak=window.mel_peak)
    np.testing.assert_allclose(window.log_mel(N_MELS)[:, :n_frames], whole[:, start:], rtol=0, atol=1e-5)


def test_first_window_of_a_long_recording_uses_its_peak(jfk: Path) -> None:
    recording = recording_of(40 * RATE, 40 * RATE - 1, jfk)
    assert Cutter(recording, N_MELS).first_window().mel_peak == mel_peak(recording, N_MELS)


@pytest.mark.parametrize(
    ("seconds", "clips"),
    [
        ((), [Clip(0, 1000)]),
        ((2.0,), [Clip(200, 1000)]),
        ((1.0, 3.0), [Clip(100, 300)]),
        ((1.0, 3.0, 8.0, 99.0), [Clip(100, 300), Clip(800, 1000)]),
        ((50.0,), []),
    ],
)
def test_clips_from(seconds: tuple[float, ...], clips: list[Clip]) -> None:
    assert clips_from(seconds, 1000) == clips


def test_intersect() -> None:
    spans = [Clip(0, 100), Clip(150, 300), Clip(400, 410), Clip(420, 500)]
    clips = [Clip(50, 160), Clip(160, 170), Clip(310, 390), Clip(405, 900)]
    assert list(intersect(clips, spans)) == [
        [Clip(50, 100), Clip(150, 160)],
        [Clip(160, 170)],
        [],
        [Clip(405, 410), Clip(420, 500)],
    ]


def test_intersect_takes_linear_time() -> None:
    clips = [Clip(20 * i, 20 * i + 10) for i in range(100_000)]
    start_s = time.process_time()
    assert [parts for (parts,) in intersect(clips, clips)] == clips
    assert time.process_time() - start_s < 5  # pairwise: minutes
