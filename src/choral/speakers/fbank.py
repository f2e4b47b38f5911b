"""Log-mel filter bank energies as Kaldi computes them, which speaker embedding networks are trained on.

Frames of 25 ms every 10 ms, only whole ones; mean removed, pre-emphasis, Hamming window, power spectrum of 512 points,
80 triangular filters from 20 Hz to 8 kHz on Kaldi's mel scale. No dither: the same samples give the same features.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE

Float32 = npt.NDArray[np.float32]

FRAME_SAMPLES = 400
HOP_SAMPLES = 160
N_FFT = 512
N_MELS = 80
LOW_HZ = 20.0
PREEMPHASIS = np.float32(0.97)
SCALE = np.float32(32768.0)  # Kaldi reads 16-bit samples as they are
FLOOR = np.float32(np.finfo(np.float32).eps)


def fbank(samples: Float32) -> Float32:
    """[frames, 80] of samples with full scale at ±1."""
    n_frames = max(0, 1 + (samples.size - FRAME_SAMPLES) // HOP_SAMPLES)
    if n_frames == 0:
        return np.zeros((0, N_MELS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME_SAMPLES)[::HOP_SAMPLES] * SCALE
    frames -= frames.mean(axis=1, keepdims=True)
    emphasized = np.empty_like(frames)
    emphasized[:, 1:] = frames[:, 1:] - PREEMPHASIS * frames[:, :-1]
    emphasized[:, 0] = frames[:, 0] * (1 - PREEMPHASIS)  # before the first sample: the first sample
    emphasized *= _window()
    spectrum = np.fft.rfft(emphasized, N_FFT, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    energies: Float32 = power @ _filters()
    return np.log(np.maximum(energies, FLOOR, out=energies), out=energies)


@cache
def _window() -> Float32:
    angles = 2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1)
    return (0.54 - 0.46 * np.cos(angles)).astype(np.float32)


def _mel(hz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1127.0 * np.log1p(hz / 700.0)


@cache
def _filters() -> Float32:
    """[257, 80]: triangles that are linear in mel, not in Hz."""
    low, high = _mel(np.array([LOW_HZ, SAMPLE_RATE / 2]))
    edges = np.linspace(low, high, N_MELS + 2)
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    bins = _mel(np.arange(N_FFT // 2 + 1) * SAMPLE_RATE / N_FFT)[:, None]
    rising, falling = (bins - left) / (center - left), (right - bins) / (right - center)
    filters: Float32 = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    return filters
