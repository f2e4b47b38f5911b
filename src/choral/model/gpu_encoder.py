"""Log-mel features and the encoder for GPUs: all windows in one product, convolutions included."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from choral.audio.constants import HOP_LENGTH, N_FFT, WINDOW_MEL_FRAMES
from choral.audio.mel import POWER_FLOOR, RANGE_LOG10, hann_window, mel_filters
from choral.kernels.fp8 import quantize_rows
from choral.kernels.norm import add_and_norm, add_and_norm_fp8
from choral.model.gpu_layers import Fp8Linear, FusedLinear, LinearGelu, ResidualLinear, as_linears, attention
from choral.model.whisper import AudioEncoder, EncoderBlock

N_PADDED = (WINDOW_MEL_FRAMES - 1) * HOP_LENGTH + N_FFT  # samples that the frames of a window cover


class GpuMel:
    """Log-mel spectrograms of many windows at once, with the same values as `audio.mel`."""

    def __init__(self, n_mels: int, device: torch.device) -> None:
        self._window = torch.from_numpy(np.array(hann_window())).to(device)
        self._filters = torch.from_numpy(np.array(mel_filters(n_mels))).t().contiguous().to(device)
        self._frame_indices = torch.arange(WINDOW_MEL_FRAMES, device=device)

    def __call__(self, padded: Tensor, n_frames: Tensor, peaks: Tensor) -> Tensor:
        """Samples padded by `audio.mel.pad` [n, `N_PADDED`] → [n, 3000, mels].

        The first `n_frames` [n] frames are audio and the rest become zero. `peaks` [n] are the log10 maxima of the
        recordings; where one is NaN, the maximum of the window itself is used.
        """
        frames = padded.unfold(1, N_FFT, HOP_LENGTH) * self._window  # [n, frames, 400]
        power = torch.view_as_real(torch.fft.rfft(frames)).square().sum(-1)
        mel = (power.flatten(0, 1) @ self._filters).clamp_(min=float(POWER_FLOOR)).log10_()
        mel = mel.view(len(padded), WINDOW_MEL_FRAMES, -1)
        is_padding = (self._frame_indices >= n_frames[:, None])[..., None]
        floors = torch.where(peaks.isnan(), mel.amax((1, 2)), peaks) - RANGE_LOG10
        mel = torch.maximum(mel, floors[:, None, None]).add_(4).mul_(0.25)
        return mel.masked_fill_(is_padding, 0)


class Convolution:
    """A convolution over three frames with GELU, as one product of the unfolded frames."""

    def __init__(self, layer: nn.Conv1d) -> None:
        self.stride = layer.stride[0]
        assert layer.bias is not None
        self.product = LinearGelu(layer.weight.transpose(1, 2).flatten(1).contiguous(), layer.bias)  # [out, 3 * in]

    def __call__(self, frames: Tensor) -> Tensor:  # [n, frames, in] → [n, frames / stride, out]
        n, n_frames, n_in = frames.shape
        padded = nn.functional.pad(frames, (0, 0, 1, 1))
        n_out = n_frames // self.stride
        strides = (padded.stride(0), self.stride * n_in, 1)
        unfolded = padded.as_strided((n, n_out, 3 * n_in), strides).reshape(n * n_out, 3 * n_in)
        return self.product(unfolded).view(n, n_out, -1)


class GpuEncoderBlock:
    def __init__(self, block: EncoderBlock) -> None:
        query, key, value, out = as_linears(block.attn.query, block.attn.key, block.attn.value, block.attn.out)
        wide, narrow = as_linears(block.mlp[0], block.mlp[2])
        self.n_head = block.attn.n_head
        self.attn_ln, self.mlp_ln = block.attn_ln, block.mlp_ln
        self.qkv, self.out = FusedLinear(query, key, value), ResidualLinear(out)
        self.wide, self.narrow = LinearGelu(wide.weight, wide.bias), ResidualLinear(narrow)

    def __call__(self, x: Tensor, pending_bias: Tensor | None, n_windows: int) -> Tensor:  # x is [n * frames, state]
        normed = add_and_norm(x, pending_bias, self.attn_ln.weight, self.attn_ln.bias)
        pending_bias = self.out(x, self_attention(self.qkv(normed), n_windows, self.n_head))
        normed = add_and_norm(x, pending_bias, self.mlp_ln.weight, self.mlp_ln.bias)
        return self.narrow(x, self.wide(normed))


class Fp8EncoderBlock:
    """The same block with fp8 products."""

    def __init__(self, block: EncoderBlock) -> None:
        plain = GpuEncoderBlock(block)
        self.n_head, self.attn_ln, self.mlp_ln = plain.n_head, plain.attn_ln, plain.mlp_ln
        layers = (plain.qkv, plain.out, plain.wide, plain.narrow)
        self.qkv, self.out, self.wide, self.narrow = (Fp8Linear(layer.weight, layer.bias) for layer in layers)

    def __call__(self, x: Tensor, pending_bias: Tensor | None, n_windows: int) -> Tensor:
        qkv = self.qkv(add_and_norm_fp8(x, pending_bias, self.attn_ln.weight, self.attn_ln.bias))
        pending_bias = self.out(quantize_rows(self_attention(qkv, n_windows, self.n_head)))
        wide = self.wide(add_and_norm_fp8(x, pending_bias, self.mlp_ln.weight, self.mlp_ln.bias))
        return self.narrow(quantize_rows(wide, gelu=True))


def self_attention(qkv: Tensor, n_windows: int, n_head: int) -> Tensor:  # [n * frames, 3 * state] → [n * frames, state]
    """Every frame attends to all frames of its window."""
    q, k, v = qkv.view(n_windows, -1, 3, n_head, qkv.shape[1] // (3 * n_head)).permute(2, 0, 3, 1, 4)
    return attention(q, k, v).transpose(1, 2).reshape(len(qkv), -1)


class GpuEncoder:
    def __init__(self, encoder: AudioEncoder, *, fp8: bool = False) -> None:
        self.conv1, self.conv2 = Convolution(encoder.conv1), Convolution(encoder.conv2)
        self.positions = encoder.positional_embedding
        self.blocks = [Fp8EncoderBlock(block) if fp8 else GpuEncoderBlock(block) for block in encoder.blocks]
        self.ln_post = encoder.ln_post

    def __call__(self, mel: Tensor) -> Tensor:  # [n, 2 * frames, mels] → [n, frames, state]
        n_windows = len(mel)
        x = (self.conv2(self.conv1(mel.to(self.positions.dtype))) + self.positions).flatten(0, 1)
        pending_bias: Tensor | None = None
        for block in self.blocks:
            pending_bias = block(x, pending_bias, n_windows)
        normed = add_and_norm(x, pending_bias, self.ln_post.weight, self.ln_post.bias)
        return normed.view(n_windows, -1, x.shape[1])
