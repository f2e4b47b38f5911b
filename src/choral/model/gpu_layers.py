"""What the GPU's encoder and decoder share: weights side by side that have one input, and products with work in them.

The plain network stays as it is, and its parameters become views into these: nothing is in memory twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from choral.kernels.fp8 import Fp8Rows, quantize_rows

# In this order: cuDNN's is the fastest where it can; float32 is left to the last two.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def lay_out(network: nn.Module) -> None:
    """Makes all weights contiguous: a checkpoint may hold them transposed, and kernels read them row by row."""
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()


class Joined:
    """Several linear layers of one input as one product, their results side by side."""

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
            # Inside the product; its tanh differs from the exact form by less than half precision can tell.
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        return F.gelu(F.linear(x, self.weight, self.bias))


class Added:
    """A linear layer whose product is added to the states in place; its bias is left to the norm that follows."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, states: Tensor, x: Tensor) -> Tensor:
        states.addmm_(x, self.weight.t())
        return self.bias


class BytesLinear:
    """A linear layer in fp8, with a scale for every output; what goes in has one for every row."""

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


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """[n, heads, positions, head_dim] each, in any layout."""
    with sdpa_kernel(BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def linears(*modules: nn.Module) -> Sequence[nn.Linear]:
    checked = []
    for module in modules:
        assert isinstance(module, nn.Linear)
        checked.append(module)
    return checked
