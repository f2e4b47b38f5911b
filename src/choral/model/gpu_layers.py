"""Layers of the GPU encoder: fused projections, and products with an activation or residual sum.

The plain network stays usable: its parameters become views of the fused ones, so nothing is in memory twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from choral.kernels.fp8 import Fp8Rows, quantize_rows

# In order of preference; float32 runs on the last two.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def make_contiguous(network: nn.Module) -> None:
    """Make all weights contiguous: a checkpoint may store them transposed, and kernels read them row by row."""
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()


class FusedLinear:
    """Several linear layers with the same input as one product; their outputs are concatenated."""

    def __init__(self, *layers: nn.Linear) -> None:
        weights: list[Tensor] = [layer.weight for layer in layers]
        self.weight = torch.cat(weights)
        biases: list[Tensor] = [
            layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
        ]
        self.bias = torch.cat(biases)
        start = 0
        for layer in layers:
            layer.weight = nn.Parameter(self.weight[start : start + layer.out_features], requires_grad=False)
            start += layer.out_features

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class LinearGelu:
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:  # [rows, in] → [rows, out]
        if x.is_cuda and x.dtype != torch.float32:
            # Fused into the product; its tanh form differs from the exact one by less than half precision resolves.
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        return F.gelu(F.linear(x, self.weight, self.bias))


class ResidualLinear:
    """Adds its product to the states in place; returns its bias, which the norm that follows adds."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, states: Tensor, x: Tensor) -> Tensor:
        if states.dtype == torch.float32:
            states += F.linear(x, self.weight)  # as one product, float32 rounds otherwise in small batches
        else:
            states.addmm_(x, self.weight.t())
        return self.bias


class Fp8Linear:
    """A linear layer in fp8, with a scale for each output; its input has a scale for each row."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.values, self.scales = quantize_rows(weight)
        self.bias = bias

    def __call__(self, x: Fp8Rows) -> Tensor:
        if not x.values.is_cuda:
            product = (x.values.float() * x.scales) @ (self.values.float() * self.scales).t()
            return product.to(self.bias.dtype) + self.bias
        return torch._scaled_mm(
            x.values, self.values.t(), x.scales, self.scales.t(), self.bias,
            out_dtype=self.bias.dtype, use_fast_accum=True,
        )  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[n, heads, positions, head_dim] each, with any strides."""
    with sdpa_kernel(BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v)


def as_linears(*modules: nn.Module) -> Sequence[nn.Linear]:
    checked = []
    for module in modules:
        assert isinstance(module, nn.Linear)
        checked.append(module)
    return checked
