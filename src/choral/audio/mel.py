"""Log-mel spectrograms equal to openai-whisper's, in numpy.

Frame t is centred at sample `lead + 160 t`. As in openai-whisper, the signal is reflected before its first sample and
zero after its last. A window cut from a longer recording needs 200 more samples on both sides and the recording's
`mel_peak`; then it equals that slice of the whole spectrogram.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE, WINDOW_MEL_FRAMES

if TYPE_CHECKING:
    from choral.audio.recording import Recording

N_BINS = N_FFT // 2 + 1  # 201 frequencies, 40 Hz apart
HALF_FRAME = N_FFT // 2
BLOCK_FRAMES = 256  # fits a core's cache, and stays below the size where BLAS starts other threads
BAND_MELS = 16  # multiply neighbouring filters together: four fifths of the full product is zeros
POWER_FLOOR = np.float32(1e-10)
RANGE_LOG10 = 8.0  # values further below the peak are raised to this distance

# Slaney's mel scale: linear up to 1 kHz, then logarithmic.
_LINEAR_HZ_PER_MEL = 200 / 3
_CORNER_HZ = 1_000.0
_CORNER_MEL = _CORNER_HZ / _LINEAR_HZ_PER_MEL
_LOG_HZ_PER_MEL = np.log(6.4) / 27

Float32 = npt.NDArray[np.float32]


def log_mel(samples: Float32, n_mels: int, *, n_frames: int, lead: int = 0, peak: float | None = None) -> Float32:
    """[n_mels, n_frames]; `peak` is the `mel_peak` of the recording, by default that of these frames."""
    spectrogram = _log10_mel(samples, n_mels, n_frames, lead)
    top = spectrogram.max(initial=-np.inf) if peak is None else peak
    np.maximum(spectrogram, np.float32(top - RANGE_LOG10), out=spectrogram)
    spectrogram += np.float32(4)
    spectrogram *= np.float32(0.25)
    return spectrogram


def mel_peak(recording: Recording, n_mels: int) -> float:
    """The largest log10 power of any mel bin in the recording."""
    peak = float(np.log10(POWER_FLOOR))  # of the zeros after the end
    first = 0
    while n_frames := min(_n_frames_from(first, recording), WINDOW_MEL_FRAMES):
        lead = HALF_FRAME if first else 0
        start = first * HOP_LENGTH - lead
        samples = recording.samples(start, start + lead + n_frames * HOP_LENGTH + HALF_FRAME)
        peak = max(peak, float(_log10_mel(samples, n_mels, n_frames, lead).max()))
        first += n_frames
    return peak


def _n_frames_from(first: int, recording: Recording) -> int:
    """How many frames there are from this one on, or at least a window's; does not wait for more."""
    return n_frames_covering(recording.available((first + WINDOW_MEL_FRAMES) * HOP_LENGTH)) - first


def n_frames_covering(n_samples: int) -> int:
    """How many frames include at least one of these samples; the last are centred after the end."""
    return -(-(n_samples + HALF_FRAME) // HOP_LENGTH)


@cache
def mel_filters(n_mels: int) -> Float32:
    """[n_mels, 201]: triangles of area one on Slaney's mel scale from 0 to 8 kHz. Read only."""
    top_mel = _CORNER_MEL + np.log(SAMPLE_RATE / 2 / _CORNER_HZ) / _LOG_HZ_PER_MEL
    mels = np.linspace(0.0, top_mel, n_mels + 2)
    edges_hz = np.where(
        mels < _CORNER_MEL,
        mels * _LINEAR_HZ_PER_MEL,
        _CORNER_HZ * np.exp(_LOG_HZ_PER_MEL * (mels - _CORNER_MEL)),
    )
    bins_hz = np.linspace(0.0, SAMPLE_RATE / 2, N_BINS)
    left, centre, right = (edges_hz[i : i + n_mels, None] for i in range(3))
    rising = (bins_hz - left) / (centre - left)
    falling = (right - bins_hz) / (right - centre)
    filters: Float32 = (np.maximum(0, np.minimum(rising, falling)) * (2 / (right - left))).astype(np.float32)
    filters.flags.writeable = False
    return filters


@dataclass(frozen=True)
class _Band:
    """Neighbouring filters and the range of bins where any of them is not zero."""

    mels: slice
    bins: slice
    weights: Float32  # [mels, bins]


@cache
def _bands(n_mels: int) -> tuple[_Band, ...]:
    filters = mel_filters(n_mels)
    bands = []
    for first in range(0, n_mels, BAND_MELS):
        mels = slice(first, first + BAND_MELS)
        nonzero = np.flatnonzero(filters[mels].any(axis=0))
        bins = slice(int(nonzero[0]), int(nonzero[-1]) + 1) if nonzero.size else slice(0, 1)
        bands.append(_Band(mels, bins, np.ascontiguousarray(filters[mels, bins])))
    return tuple(bands)


@cache
def hann_window() -> Float32:
    """The periodic Hann window, rounded like torch's: quiet bins show the difference."""
    angles = np.arange(N_FFT, dtype=np.float32) * np.float32(2 * np.pi / N_FFT)
    return np.float32(0.5) - np.float32(0.5) * np.cos(angles.astype(np.float64)).astype(np.float32)


def _log10_mel(samples: Float32, n_mels: int, n_frames: int, lead: int) -> Float32:
    frames = _frames(samples, n_frames, lead)
    bands, window = _bands(n_mels), hann_window()
    mel = np.empty((n_mels, n_frames), np.float32)
    windowed = np.empty((BLOCK_FRAMES, N_FFT), np.float32)
    spectra = np.empty((BLOCK_FRAMES, N_BINS), np.complex64)
    power = np.empty((BLOCK_FRAMES, N_BINS), np.float32)
    for first in range(0, n_frames, BLOCK_FRAMES):
        n = min(BLOCK_FRAMES, n_frames - first)
        np.multiply(frames[first : first + n], window, out=windowed[:n])
        np.fft.rfft(windowed[:n], out=spectra[:n])  # type: ignore[arg-type]  # typed for doubles only
        squares = spectra[:n].view(np.float32)  # real, imaginary, real, …
        np.square(squares, out=squares)
        np.add(squares[:, 0::2], squares[:, 1::2], out=power[:n])
        for band in bands:
            np.matmul(band.weights, power[:n, band.bins].T, out=mel[band.mels, first : first + n])
    np.maximum(mel, POWER_FLOOR, out=mel)
    return np.log10(mel, out=mel)


def _frames(samples: Float32, n_frames: int, lead: int) -> Float32:
    """[n_frames, 400] overlapping views into one padded copy."""
    padded = np.empty(max(n_frames - 1, 0) * HOP_LENGTH + N_FFT, np.float32)
    pad(samples, lead, padded)
    return np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP_LENGTH][:n_frames]


def pad(samples: Float32, lead: int, out: Float32) -> None:
    """Fills `out` with the signal from half a frame before `lead`: reflected samples, the signal, zeros."""
    n_mirrored = max(HALF_FRAME - lead, 0)
    signal = samples[max(lead - HALF_FRAME, 0) :][: out.size - n_mirrored]
    end = n_mirrored + signal.size
    out[n_mirrored:end] = signal
    out[end:] = 0
    mirrored = samples[1 : 1 + n_mirrored]
    out[n_mirrored - mirrored.size : n_mirrored] = mirrored[::-1]
    out[: n_mirrored - mirrored.size] = 0
