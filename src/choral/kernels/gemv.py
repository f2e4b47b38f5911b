"""Linear layers of one or two rows, at the speed of reading the weights: for those who want one window soon.

Fused with norm, bias, GELU and residual add. Each program loads whole rows of the weights before it reads the states;
with programmatic dependent launch that happens while the previous kernels still run. Its sums have another order than
those of `linear`, so results differ from theirs in the last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import has_kernels, pdl_options, require
from choral.kernels.norm import EPSILON

MAX_ROWS = 2  # more rows are as fast with cuBLAS
BLOCK_ROWS = 4  # of weights per program
SHORT_ROW = 2048  # read by a single warp, without a reduction between warps


@triton.jit
def _products(x, weights, inner, K: tl.constexpr):
    """Dot products of a part of a row with each weight row, and the sums of the part and of its squares."""
    states = tl.load(x + inner, mask=inner < K, other=0.0).to(tl.float32)
    products = tl.sum(weights.to(tl.float32) * states[None, :], axis=1)
    return products, tl.sum(states, axis=0), tl.sum(states * states, axis=0)


@triton.jit
def _gemv(
    x, weight, bias, totals, out,
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
    shifts = tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean_shares = tl.load(totals + columns, mask=columns < N, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in tl.static_range(ROWS):
        result, total, squares = _products(x + row * K, weights, inner, K)
        if REST > 0:
            more = _products(x + row * K, more_weights, rest, K)
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


def gemv(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [out, in]
    bias: Tensor,
    totals: Tensor | None,  # of the weights, if a norm is folded into them
    out: Tensor,
    *,
    gelu: bool,
    is_added: bool,
    is_first: bool,
) -> None:
    """Write the product, or add it, to `out` [rows, out]; `is_first`: it starts a chain of dependent launches."""
    (n_rows, n_in), n_out = x.shape, len(weight)
    require(has_kernels(x) and n_rows <= MAX_ROWS, "one or two rows on a GPU")
    require(x.is_contiguous() and weight.is_contiguous() and weight.shape[1] == n_in, "contiguous states and weights")
    part = 1 << (n_in.bit_length() - 1)  # two powers of two: enough for all models
    rest = triton.next_power_of_2(n_in - part) if n_in > part else 0
    _gemv[(triton.cdiv(n_out, BLOCK_ROWS),)](
        x, weight, bias, totals, out,
        ROWS=n_rows, N=n_out, K=n_in, PART=part, REST=rest, BLOCK=BLOCK_ROWS, HAS_NORM=totals is not None,
        HAS_GELU=gelu, IS_ADDED=is_added, EPS=EPSILON, num_warps=1 if n_in <= SHORT_ROW else 4,
        **pdl_options(x, is_first=is_first),
    )  # fmt: skip
