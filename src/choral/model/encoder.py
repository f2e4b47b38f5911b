"""Whisper's audio encoder: log-mel features of 30 s in, one state for every 20 ms out."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from choral.model.dims import ModelDims
from choral.model.layers import MLP, Attention


class EncoderBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = Attention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.mlp = MLP(n_state)
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor) -> None:
        """In place, as fresh memory for a sum costs a CPU more than the sum."""
        x += self.attn(self.attn_ln(x))
        x += self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    positional_embedding: Tensor
    blocks: Sequence[EncoderBlock]

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_audio_state
        self.conv1 = nn.Conv1d(dims.n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(self.conv1.weight.new_empty(dims.n_audio_ctx, n_state))
        blocks = [EncoderBlock(n_state, dims.n_audio_head) for _ in range(dims.n_audio_layer)]
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # which is a sequence of them
        self.ln_post = nn.LayerNorm(n_state)

    def forward(self, mel: Tensor) -> Tensor:  # [n, mels, 2 * frames] → [n, frames, state]
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + self.positional_embedding
        for block in self.blocks:
            block(x)
        features: Tensor = self.ln_post(x)
        return features
