"""Bfloat16 for CPUs that multiply it natively: linear layers, and the encoder's attention.

What goes in and comes out is float32, so that sums over layers and norms keep their precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Queries whose scores are in work at a time: with 1,500 keys 450 kB a head, which stay in the cache of a core
# instead of going out to memory and back.
QUERIES = 150


def is_fast_here() -> bool:
    return torch.cpu._is_avx512_bf16_supported()


class HalfLinear(nn.Linear):
    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        # A checkpoint may hold its weights transposed, and each call would turn them around.
        self.weight = nn.Parameter(plain.weight.bfloat16().contiguous(), requires_grad=False)
        bias = None if plain.bias is None else nn.Parameter(plain.bias.bfloat16(), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), self.weight, self.bias).float()


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position attends to all others of its window; [windows, heads, frames, head_dim] in and out.

    One window at a time, so that its numbers never depend on its neighbours in a batch.
    """
    # In memory heads lie beside each other, as they are merged afterwards.
    attended = q.transpose(1, 2).new_empty(q.transpose(1, 2).shape).transpose(1, 2)
    scaled = q * q.shape[-1] ** -0.5
    for queries, keys, values, result in zip(_half(scaled), _half(k), _half(v), attended, strict=True):
        for start in range(0, queries.shape[1], QUERIES):
            scores = torch.bmm(queries[:, start : start + QUERIES], keys.transpose(1, 2))
            torch.softmax(scores, dim=-1, out=scores)
            result[:, start : start + QUERIES] = torch.bmm(scores, values)
    return attended


def _half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16, memory_format=torch.contiguous_format)
