"""Linear layers for a handful of rows, where reading the weights is all the work: norm, bias, GELU and sum in one go.

Each program reads some rows of the weights whole, before it looks at the states. With programmatic dependent launch
that happens while the kernels before it still run.
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

MAX_ROWS = 2  # more are as fast through a matrix product
BLOCK_ROWS = 4  # of weights, a program
SHORT_ROW = 2048  # one warp then reads it, and nothing has to be summed up between warps


@dataclass(frozen=True)
class NormLinear:
    """A norm and the linear layer behind it as one product, whose results the norm's mean and scale are put into."""

    weight: Tensor  # [out, in]
    gain: Tensor  # [in], the norm's own weights
    shift: Tensor  # [out], both biases, float32
    totals: Tensor  # [out], what a mean of one adds, float32

    @classmethod
    def of(cls, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor | None) -> NormLinear:
        shift = weight.float() @ norm_bias.float()
        totals = weight.float() @ norm_weight.float()
        return cls(weight, norm_weight, shift if bias is None else shift + bias.float(), totals)


@triton.jit
def _products(x, gain, weights, inner, K: tl.constexpr, HAS_NORM: tl.constexpr):
    """Of a part of a row with the weights of each column; and the sums of the row itself and of its squares."""
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
    own, is_own = columns[:, None] * K, (columns < N)[:, None]
    inner = tl.arange(0, PART)
    weights = tl.load(weight + own + inner[None, :], mask=is_own & (inner < K)[None, :], other=0.0)
    if REST > 0:
        rest = PART + tl.arange(0, REST)
        more_weights = tl.load(weight + own + rest[None, :], mask=is_own & (rest < K)[None, :], other=0.0)
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
    """[rows, in] → [rows, out], the norm first; `is_first` of its chain of kernels."""
    if not has_kernels(x):
        return reference(x, layer, gelu=gelu, dtype=dtype)
    out = torch.empty(len(x), len(layer.weight), dtype=dtype or x.dtype, device=x.device)
    return _launch(x, layer.weight, layer.shift, out, layer, gelu=gelu, is_first=is_first)


def add_linear(x: Tensor, weight: Tensor, bias: Tensor, added_to: Tensor) -> Tensor:
    """[rows, in] → [rows, out], added in place."""
    if not has_kernels(x):
        return added_to.add_(F.linear(x, weight, bias))
    require(added_to.is_contiguous(), "a contiguous sum")
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
    part = 1 << (n_in.bit_length() - 1)  # two powers of two: no model's rows need more
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
