"""Linear layers in bfloat16, for CPUs that multiply it natively.

What goes in and comes out is float32, so that sums over layers and norms keep their precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
