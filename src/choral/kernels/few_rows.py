"""Linear layers for a handful of rows, where reading the weights is all the work: norm, bias, GELU and sum in one go.

Each program reads some rows of the weights whole, before it looks at the states. With programmatic dependent launch
that happens while the kernel before it still runs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import chained, has_kernels, require
from choral.kernels.norm import EPSILON

MOST_ROWS = 4  # more are faster through a matrix product
SHORT_ROW, MANY_ROWS = 2048, 4096


@triton.jit
def _linear(
    x, weight, bias, norm_weight, norm_bias, out,
    ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_GELU: tl.constexpr, IS_ADDED: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, PADDED)
    is_inner = inner < K
    places = columns[:, None] * K + inner[None, :]
    weights = tl.load(weight + places, mask=is_inner[None, :] & (columns < N)[:, None], other=0.0)
    weights = weights.to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    if HAS_NORM:
        # The norm's own weights go into these, and its mean comes off the product: nothing waits for the mean.
        norm_shift = tl.load(norm_bias + inner, mask=is_inner, other=0.0).to(tl.float32)
        shift += tl.sum(weights * norm_shift[None, :], axis=1)
        weights *= tl.load(norm_weight + inner, mask=is_inner, other=0.0).to(tl.float32)[None, :]
        totals = tl.sum(weights, axis=1)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in tl.static_range(ROWS):
        states = tl.load(x + row * K + inner, mask=is_inner, other=0.0).to(tl.float32)
        result = tl.sum(weights * states[None, :], axis=1)
        if HAS_NORM:
            mean = tl.sum(states, axis=0) / K
            variance = tl.sum(states * states, axis=0) / K - mean * mean
            result = (result - mean * totals) * tl.rsqrt(variance + EPS)
        result += shift
        if HAS_GELU:
            result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
        target = out + row * N + columns
        if IS_ADDED:
            result += tl.load(target, mask=columns < N, other=0.0).to(tl.float32)
        tl.store(target, result.to(out.dtype.element_ty), mask=columns < N)


def linear(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [out, in]
    bias: Tensor,
    *,
    norm: tuple[Tensor, Tensor] | None = None,  # weight and bias of a norm that comes first
    gelu: bool = False,
    added_to: Tensor | None = None,  # [rows, out], which takes the sum
) -> Tensor:
    if not has_kernels(x):
        return reference(x, weight, bias, norm=norm, gelu=gelu, added_to=added_to)
    (n_rows, n_in), n_out = x.shape, len(weight)
    require(x.is_contiguous() and weight.is_contiguous() and weight.shape[1] == n_in, "contiguous states and weights")
    require(added_to is None or added_to.is_contiguous(), "a contiguous sum")
    out = torch.empty(n_rows, n_out, dtype=x.dtype, device=x.device) if added_to is None else added_to
    padded = triton.next_power_of_2(n_in)
    block = 4 if n_out > MANY_ROWS else 8  # rows of weights a program; this and the warps by trial
    n_warps = 2 if padded <= SHORT_ROW else 8
    _linear[(triton.cdiv(n_out, block),)](
        x, weight, bias, *(norm or (None, None)), out,
        ROWS=n_rows, N=n_out, K=n_in, PADDED=padded, BLOCK=block, HAS_NORM=norm is not None, HAS_GELU=gelu,
        IS_ADDED=added_to is not None, EPS=EPSILON, num_warps=n_warps,
        **chained(x),
    )  # fmt: skip
    return out


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    gelu: bool = False,
    added_to: Tensor | None = None,
) -> Tensor:
    states = x if norm is None else F.layer_norm(x, x.shape[-1:], *norm, EPSILON)
    result = F.linear(states, weight, bias)
    if gelu:
        result = F.gelu(result)
    return result if added_to is None else added_to.add_(result)
