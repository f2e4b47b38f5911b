"""Filter bank features against Kaldi's definition, step by step in double precision."""

from __future__ import annotations

import math

import numpy as np

from choral.speakers.fbank import fbank


def mel(hz: float) -> float:
    return 1127.0 * math.log(1.0 + hz / 700.0)


def kaldi_frame(samples: np.ndarray) -> list[float]:
    """compute-fbank-feats --dither=0 --window-type=hamming --num-mel-bins=80 --use-energy=false, of one frame."""
    frame = samples.astype(np.float64) * 32768
    frame = frame - frame.mean()
    emphasized = [frame[0] - 0.97 * frame[0]] + [frame[i] - 0.97 * frame[i - 1] for i in range(1, 400)]
    windowed = [value * (0.54 - 0.46 * math.cos(2 * math.pi * i / 399)) for i, value in enumerate(emphasized)]
    power = np.abs(np.fft.rfft(windowed, 512)) ** 2
    width = (mel(8000) - mel(20)) / 81
    energies = []
    for number in range(80):
        left, center, right = (mel(20) + (number + k) * width for k in range(3))
        total = 0.0
        for index in range(256):
            position = mel(index * 16000 / 512)
            if left < position < right:
                rising = position <= center
                weight = (position - left) / (center - left) if rising else (right - position) / (right - center)
                total += weight * power[index]
        energies.append(math.log(max(total, float(np.finfo(np.float32).eps))))
    return energies


def test_features_follow_kaldi() -> None:
    generator = np.random.default_rng(0)
    times = np.arange(2_000) / 16_000
    samples = (0.3 * np.sin(2 * np.pi * 220 * times) + 0.02 * generator.normal(size=times.size) + 0.1).astype("f4")
    features = fbank(samples)
    assert features.shape == (1 + (2_000 - 400) // 160, 80)
    for index in (0, 5, len(features) - 1):
        np.testing.assert_allclose(features[index], kaldi_frame(samples[160 * index :][:400]), atol=2e-3)


def test_silence_and_short_input() -> None:
    assert fbank(np.zeros(399, np.float32)).shape == (0, 80)
    silence = fbank(np.zeros(400, np.float32))
    np.testing.assert_allclose(silence, math.log(float(np.finfo(np.float32).eps)), rtol=1e-6)
