"""Loudness measurement and normalisation.

"ebu" is the integrated loudness of EBU R128 (ITU-R BS.1770) in LUFS: K-weighted, with pauses gated out. "rms" is the
root mean square of all samples in dB of full scale. Both are measured on the 16 kHz mono samples in one pass and
bounded memory, and applied as one gain for the whole recording, limited so that no sample exceeds full scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.options import LoudnessKind

Values = npt.NDArray[np.float64]
Bins = npt.NDArray[np.complex128]

TARGETS_DB: dict[LoudnessKind, float] = {"ebu": -23.0, "rms": -20.0}  # R128's target; a usual level for speech
HOP = SAMPLE_RATE // 10  # blocks of 400 ms start every 100 ms
HOPS_IN_BLOCK = 4
ABSOLUTE_GATE_LUFS = -70.0  # blocks below are not counted
RELATIVE_GATE_LU = -10.0  # nor are blocks this far below the mean of the others
LUFS_OFFSET = -0.691
PIECE = 160 * HOP
TAIL = 2**18 - PIECE  # 0.4 s: longer than the impulse response of the filters


def normalize_loudness(recording: Recording, kind: LoudnessKind, target_db: float | None = None) -> Recording:
    """The recording with a gain that gives it this loudness; it reads the samples of the original."""
    if recording.is_silent:
        return recording
    target_db = TARGETS_DB[kind] if target_db is None else target_db
    level_db = measure_loudness(recording, kind)
    if level_db == -math.inf:
        return recording
    return recording.amplified(min(10 ** ((target_db - level_db) / 20), 1 / recording.peak))


def measure_loudness(recording: Recording, kind: LoudnessKind) -> float:
    """In LUFS or dB, minus infinity if everything is gated out; cached on the recording."""
    if kind not in recording.levels_db:
        recording.levels_db[kind] = _integrated_lufs(recording) if kind == "ebu" else _rms_db(recording)
    return recording.levels_db[kind]


def _rms_db(recording: Recording) -> float:
    energy = sum(float(np.square(piece, dtype=np.float64).sum()) for piece in recording.pieces(PIECE))
    return _decibel(energy / recording.n_samples)


def _integrated_lufs(recording: Recording) -> float:
    hops = np.concatenate([*_hop_energies(recording), np.zeros(0)])
    if hops.size < HOPS_IN_BLOCK:  # shorter than one block: use the hops there are
        hops = np.full(HOPS_IN_BLOCK, hops.mean() if hops.size else 0.0)
    blocks = np.convolve(hops, np.full(HOPS_IN_BLOCK, 1 / HOPS_IN_BLOCK), mode="valid")
    audible = blocks[blocks > _power(ABSOLUTE_GATE_LUFS)]
    if not audible.size:
        return -math.inf
    loud = audible[audible > audible.mean() * 10 ** (RELATIVE_GATE_LU / 10)]
    return LUFS_OFFSET + _decibel(float(loud.mean()))


def _hop_energies(recording: Recording) -> Iterator[Values]:
    """The mean square of each whole hop, after K-weighting."""
    history = np.zeros(TAIL)
    for piece in recording.pieces(PIECE):
        signal = np.concatenate([history, piece])
        n_hops = piece.size // HOP
        # Filtered in the frequency domain: the circular wrap-around falls on the tail, which is discarded.
        spectrum = np.fft.rfft(signal, PIECE + TAIL) * _k_weighting()
        weighted = np.fft.irfft(spectrum, PIECE + TAIL)[TAIL : TAIL + n_hops * HOP]
        yield np.square(weighted).reshape(n_hops, HOP).mean(axis=1)
        history = signal[-TAIL:]


@cache
def _k_weighting() -> Bins:
    """Frequency response of the two filters of BS.1770 (head shelf, high-pass) at 16 kHz and the bins of a piece."""
    z = np.exp(-2j * np.pi * np.arange((PIECE + TAIL) // 2 + 1) / (PIECE + TAIL))
    k, q, gain = math.tan(math.pi * 1681.974450955533 / SAMPLE_RATE), 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    middle = gain**0.4996667741545416
    shelf = _response(z, (gain + middle * k / q + k * k, 2 * (k * k - gain), gain - middle * k / q + k * k), k, q)
    k, q = math.tan(math.pi * 38.13547087602444 / SAMPLE_RATE), 0.5003270373238773
    unity = 1 + k / q + k * k
    return shelf * _response(z, (unity, -2 * unity, unity), k, q)


def _response(z: Bins, zeros: tuple[float, float, float], k: float, q: float) -> Bins:
    """Response of a biquad: `zeros` over the poles of a corner at `k` with quality `q`."""
    poles = (1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k)
    numerator, denominator = (c[0] + z * (c[1] + z * c[2]) for c in (zeros, poles))
    return numerator / denominator


def _power(lufs: float) -> float:
    return float(10 ** ((lufs - LUFS_OFFSET) / 10))


def _decibel(power: float) -> float:
    return 10 * math.log10(power) if power > 0 else -math.inf
