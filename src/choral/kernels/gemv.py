"""Linear layers for one or two rows, bound by reading the weights, fused with norm, bias, GELU and residual add.

Each program loads whole rows of the weights before it reads the states. With programmatic dependent launch that happens
while the previous kernels still run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import has_kernels, pdl_options, require
from choral.kernels.norm import EPSILON

MAX_ROWS = 2  # more rows are as fast with cuBLAS
BLOCK_ROWS = 4  # of weights per program
SHORT_ROW = 2048  # read by a single warp, without a reduction between warps


@dataclass(frozen=True)
class NormLinear:
    """A layer norm folded into the linear layer behind it: mean and scale are applied to the product."""

    weight: Tensor  # [out, in]
    gain: Tensor  # [in], the norm's weights
    shift: Tensor  # [out], both biases, float32
    totals: Tensor  # [out], the product of a mean of one, float32

    @classmethod
    def of(cls, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor | None) -> NormLinear:
        shift = weight.float() @ norm_bias.float()
        totals = weight.float() @ norm_weight.float()
        return cls(weight, norm_weight, shift if bias is None else shift + bias.float(), totals)


@triton.jit
def _products(x, gain, weights, inner, K: tl.constexpr, HAS_NORM: tl.constexpr):
    """Dot products of a part of a row with each weight row, and the sums of the part and of its squares."""
    states = tl.load(x + inner, mask=inner < K, other=0.0).to(tl.float32)
    scaled = states
    if HAS_NORM:
        scaled = states * tl.load(gain + inner, mask=inner < K, other=0.0).to(tl.float32)
    products = tl.sum(weights.to(tl.float32) * scaled[None, :], axis=1)
    return products, tl.sum(states, axis=0), tl.sum(states * states, axis=0)


@triton.jit
def _linear(
    x, weight, shift, gain, totals, out,
    ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PART: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GELU: tl.constexpr, IS_ADDED: tl.constexpr, EPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row_offsets, is_column = columns[:, None] * K, (columns < N)[:, None]
    inner = tl.arange(0, PART)
    weights = tl.load(weight + row_offsets + inner[None, :], mask=is_column & (inner < K)[None, :], other=0.0)
    if REST > 0:
        rest = PART + tl.arange(0, REST)
        more_weights = tl.load(weight + row_offsets + rest[None, :], mask=is_column & (rest < K)[None, :], other=0.0)
    shifts = tl.load(shift + columns, mask=columns < N, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean_shares = tl.load(totals + columns, mask=columns < N, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in tl.static_range(ROWS):
        result, total, squares = _products(x + row * K, gain, weights, inner, K, HAS_NORM)
        if REST > 0:
            more = _products(x + row * K, gain, more_weights, rest, K, HAS_NORM)
            result, total, squares = result + more[0], total + more[1], squares + more[2]
        if HAS_NORM:
            mean = total / K
            result = (result - mean * mean_shares) * tl.rsqrt(squares / K - mean * mean + EPS)
        result += shifts
        if HAS_GELU:
            result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
        target = out + row * N + columns
        if IS_ADDED:
            result += tl.load(target, mask=columns < N, other=0.0).to(tl.float32)
        tl.store(target, result.to(out.dtype.element_ty), mask=columns < N)


def norm_linear(
    x: Tensor, layer: NormLinear, *, gelu: bool = False, dtype: torch.dtype | None = None, is_first: bool = False
) -> Tensor:
    """[rows, in] → [rows, out]; `is_first`: it starts a chain of dependent launches."""
    if not has_kernels(x):
        return reference(x, layer, gelu=gelu, dtype=dtype)
    out = torch.empty(len(x), len(layer.weight), dtype=dtype or x.dtype, device=x.device)
    return _launch(x, layer.weight, layer.shift, out, layer, gelu=gelu, is_first=is_first)


def add_linear(x: Tensor, weight: Tensor, bias: Tensor, added_to: Tensor) -> Tensor:
    """[rows, in] → [rows, out], added in place."""
    if not has_kernels(x):
        return added_to.add_(F.linear(x, weight, bias))
    require(added_to.is_contiguous(), "a contiguous residual")
    return _launch(x, weight, bias, added_to, None)


def _launch(
    x: Tensor,
    weight: Tensor,
    shift: Tensor,
    out: Tensor,
    norm: NormLinear | None,
    *,
    gelu: bool = False,
    is_first: bool = False,
) -> Tensor:
    (n_rows, n_in), n_out = x.shape, len(weight)
    require(x.is_contiguous() and weight.is_contiguous() and weight.shape[1] == n_in, "contiguous states and weights")
    part = 1 << (n_in.bit_length() - 1)  # two powers of two: enough for all models
    rest = triton.next_power_of_2(n_in - part) if n_in > part else 0
    _linear[(triton.cdiv(n_out, BLOCK_ROWS),)](
        x, weight, shift, norm and norm.gain, norm and norm.totals, out,
        ROWS=n_rows, N=n_out, K=n_in, PART=part, REST=rest, BLOCK=BLOCK_ROWS, HAS_NORM=norm is not None, HAS_GELU=gelu,
        IS_ADDED=norm is None, EPS=EPSILON, num_warps=1 if n_in <= SHORT_ROW else 4,
        **pdl_options(x, is_first=is_first),
    )  # fmt: skip
    return out


def reference(x: Tensor, layer: NormLinear, *, gelu: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    states = F.layer_norm(x, x.shape[-1:], layer.gain, None, EPSILON)
    result = F.linear(states, layer.weight) + layer.shift.to(x.dtype)
    return (F.gelu(result) if gelu else result).to(dtype or x.dtype)
