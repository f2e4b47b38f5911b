"""Audio as samples and as features, which are torch tensors as in openai-whisper."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH, N_FFT, SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import HALF_FRAME, log_mel
from choral.audio.recording import Recording
from choral.errors import MissingDependency, UsageError

if TYPE_CHECKING:
    import torch

CHUNK_LENGTH = 30
N_SAMPLES, N_FRAMES = WINDOW_SAMPLES, WINDOW_MEL_FRAMES
N_MELS = (80, 128)

__all__ = [
    "CHUNK_LENGTH",
    "HOP_LENGTH",
    "N_FFT",
    "N_FRAMES",
    "N_SAMPLES",
    "SAMPLE_RATE",
    "load_audio",
    "log_mel_spectrogram",
    "pad_or_trim",
]


def load_audio(file: str | os.PathLike[str], sr: int = SAMPLE_RATE) -> npt.NDArray[np.float32]:
    """16 kHz mono samples from -1 to 1."""
    if sr != SAMPLE_RATE:
        raise UsageError(f"sr is {sr}; Choral decodes to {SAMPLE_RATE} Hz only, as Whisper needs")
    with Recording.open(file) as recording:
        return np.array(recording.samples(0, recording.n_samples), dtype=np.float32)


def pad_or_trim(array: Any, length: int = N_SAMPLES, *, axis: int = -1) -> Any:
    """An array or a tensor of this length along the axis, with zeros at its end where it is shorter."""
    kept = array[(slice(None),) * (axis % array.ndim) + (slice(length),)]
    missing = length - kept.shape[axis]
    if missing <= 0:
        return kept
    shape = list(kept.shape)
    shape[axis] = missing
    if isinstance(kept, np.ndarray):
        return np.concatenate([kept, np.zeros(shape, kept.dtype)], axis=axis)
    import torch

    return torch.cat([kept, kept.new_zeros(shape)], dim=axis)


def log_mel_spectrogram(
    audio: str | npt.NDArray[np.float32] | torch.Tensor,
    n_mels: int = 80,
    padding: int = 0,
    device: str | torch.device | None = None,
) -> torch.Tensor:
    """[n_mels, frames], with `padding` zeros after the audio."""
    try:
        import torch
    except ImportError as missing:
        raise MissingDependency("log_mel_spectrogram returns a tensor: pip install 'choral[torch]'") from missing
    if n_mels not in N_MELS:
        raise UsageError(f"n_mels is {n_mels}; Whisper's models have {' or '.join(map(str, N_MELS))}")
    samples = np.pad(read_samples(audio), (0, padding))
    n_frames = len(samples) // HOP_LENGTH
    mirrored = samples[-2 : -2 - HALF_FRAME : -1]  # openai-whisper's frames at the end see the audio reflected
    mel = log_mel(np.concatenate([samples, mirrored]), n_mels, n_frames=n_frames)
    return torch.from_numpy(mel).to(device or "cpu")


def read_samples(audio: Any) -> npt.NDArray[np.float32]:
    """The samples of a file, an array or a tensor."""
    if isinstance(audio, str | os.PathLike):
        return load_audio(audio)
    return np.asarray(audio.cpu().numpy() if hasattr(audio, "cpu") else audio, dtype=np.float32)
