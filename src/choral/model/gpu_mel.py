"""Log-mel spectrograms of many windows at once, with torch: the numbers of `audio.mel`, which explains them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from choral.audio.constants import HOP_LENGTH, N_FFT, WINDOW_MEL_FRAMES
from choral.audio.mel import POWER_FLOOR, RANGE_LOG10, hann_window, mel_filters

N_PADDED = (WINDOW_MEL_FRAMES - 1) * HOP_LENGTH + N_FFT  # samples that the frames of a window hear


class GpuMel:
    def __init__(self, n_mels: int, device: torch.device) -> None:
        self._window = torch.from_numpy(np.array(hann_window())).to(device)
        self._filters = torch.from_numpy(np.array(mel_filters(n_mels))).t().contiguous().to(device)
        self._numbers = torch.arange(WINDOW_MEL_FRAMES, device=device)

    def __call__(self, padded: Tensor, n_frames: Tensor, peaks: Tensor) -> Tensor:
        """From samples as `audio.mel.pad` has them [n, `N_PADDED`] to [n, 3000, mels].

        Of the frames so many are sound [n], the rest stay zero; a recording's peak [n] that is not a number is looked
        for in all that the window hears.
        """
        frames = padded.unfold(1, N_FFT, HOP_LENGTH) * self._window  # [n, frames, 400]
        power = torch.view_as_real(torch.fft.rfft(frames)).square().sum(-1)
        mel = (power.flatten(0, 1) @ self._filters).clamp_(min=float(POWER_FLOOR)).log10_()
        mel = mel.view(len(padded), WINDOW_MEL_FRAMES, -1)
        is_silence = (self._numbers >= n_frames[:, None])[..., None]
        floors = torch.where(peaks.isnan(), mel.amax((1, 2)), peaks) - RANGE_LOG10
        mel = torch.maximum(mel, floors[:, None, None]).add_(4).mul_(0.25)
        return mel.masked_fill_(is_silence, 0)
