"""From samples to features on a GPU: mel spectrograms and encoder as one CUDA graph for each of a few batch sizes.

Samples are copied from pinned memory on a stream of their own, while the GPU computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from choral.audio.mel import pad
from choral.engine.gpu_graphs import StepGraphs
from choral.engine.torch_device import to_device
from choral.engine.window import WindowAudio
from choral.model.gpu_encoder import N_PADDED, GpuEncoder, GpuMel

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 21)


class GpuFeatures(NamedTuple):
    """Encoder results [frames, state] of a window: the model's, and those of a draft model with its own encoder."""

    model: Tensor
    draft: Tensor


class GpuEncode:
    def __init__(self, encoder: GpuEncoder, n_mels: int, budget_windows: int, device: torch.device) -> None:
        max_windows = min(budget_windows, max(SIZES))  # larger batches gain nothing, and take memory
        self._encoder, self._mel, self._device = encoder, GpuMel(n_mels, device), device
        is_cuda = device.type == "cuda"
        self._staged = torch.zeros(max_windows, N_PADDED, pin_memory=is_cuda)
        self._samples = torch.zeros(max_windows, N_PADDED, device=device)
        self._n_frames = torch.zeros(max_windows, dtype=torch.long, device=device)
        self._peaks = torch.zeros(max_windows, device=device)
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        sizes = [*(size for size in SIZES if size < max_windows), max_windows]
        self.graphs = StepGraphs(self._forward, sizes, device)

    def _forward(self, n: int) -> Tensor:
        return self._encoder(self._mel(self._samples[:n], self._n_frames[:n], self._peaks[:n]))

    def __call__(self, audios: Sequence[WindowAudio]) -> list[Tensor]:  # each [frames, state]
        n = len(self._staged)
        batches = [audios[first : first + n] for first in range(0, len(audios), n)]
        return [features for batch in batches for features in self._encode_batch(batch)]

    def _encode_batch(self, audios: Sequence[WindowAudio]) -> list[Tensor]:
        n = len(audios)
        samples = self._copy_samples(audios)
        peaks = [math.nan if audio.mel_peak is None else audio.mel_peak for audio in audios]
        self._samples[:n] = samples
        self._n_frames[:n] = to_device(torch.tensor([audio.n_mel_frames for audio in audios]), self._device)
        self._peaks[:n] = to_device(torch.tensor(peaks, dtype=torch.float32), self._device)
        features = self.graphs.run(n)
        return [features[window].clone() for window in range(n)]  # separate, so that the cache can drop each alone

    def _copy_samples(self, audios: Sequence[WindowAudio]) -> Tensor:
        if self._stream is not None:
            self._stream.synchronize()  # the last copy has left the staging buffer
        staged = self._staged[: len(audios)]
        for row, audio in zip(staged.numpy(), audios, strict=True):
            pad(audio.samples, audio.lead, row)
        if self._stream is None:
            return staged
        with torch.cuda.stream(self._stream):
            samples = staged.to(self._device, non_blocking=True)
        compute_stream = torch.cuda.current_stream(self._device)
        compute_stream.wait_stream(self._stream)
        samples.record_stream(compute_stream)
        return samples
