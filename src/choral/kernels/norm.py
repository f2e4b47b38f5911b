"""Layer norm fused with the residual add before it: one pass over the states instead of three.

The addend is a bias for all rows, or a row for each. The result can be quantized to fp8 for the product behind it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.fp8 import FP8, FP8_MAX, MIN_AMAX, Fp8Rows, quantize_rows
from choral.kernels.launch import has_kernels, pdl_options, require

EPSILON = 1e-5


@triton.jit
def _norm(
    x, added, weight, bias, out, scales,
    N: tl.constexpr, PADDED: tl.constexpr, HAS_ADDED: tl.constexpr, ADDED_STRIDE: tl.constexpr, EPS: tl.constexpr,
    IS_FP8: tl.constexpr, TOP: tl.constexpr, SMALLEST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    is_column = columns < N
    row_values = x + row * N + columns
    values = tl.load(row_values, mask=is_column, other=0.0).to(tl.float32)
    if HAS_ADDED:
        values += tl.load(added + row * ADDED_STRIDE + columns, mask=is_column, other=0.0).to(tl.float32)
        tl.store(row_values, values.to(x.dtype.element_ty), mask=is_column)
    mean = tl.sum(values, axis=0) / N
    centred = tl.where(is_column, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / N + EPS)
    gain = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    result = centred * scale * gain + shift
    if IS_FP8:
        largest = tl.maximum(tl.max(tl.abs(result), axis=0), SMALLEST)
        tl.store(scales + row, largest / TOP)
        result *= TOP / largest
    tl.store(out + row * N + columns, result.to(out.dtype.element_ty), mask=is_column)


def add_and_norm(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:  # [rows, state]
    """Add to x in place, and return its norm."""
    if not has_kernels(x):
        return reference(x, added, weight, bias)
    return _launch(x, added, weight, bias, torch.empty_like(x), None)


def add_and_norm_fp8(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor) -> Fp8Rows:
    if not has_kernels(x):
        return quantize_rows(reference(x, added, weight, bias))
    scales = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    return Fp8Rows(_launch(x, added, weight, bias, torch.empty_like(x, dtype=FP8), scales), scales)


def _launch(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, out: Tensor, scales: Tensor | None
) -> Tensor:
    n_rows, n_state = x.shape
    require(x.is_contiguous() and weight.shape == bias.shape == (n_state,), "contiguous rows")
    require(added is None or (added.is_contiguous() and added.shape[-1] == n_state), "contiguous rows to add")
    padded = triton.next_power_of_2(n_state)
    _norm[(n_rows,)](
        x, added, weight, bias, out, scales, N=n_state, PADDED=padded, HAS_ADDED=added is not None,
        ADDED_STRIDE=n_state if added is not None and added.ndim == 2 else 0, EPS=EPSILON,
        IS_FP8=scales is not None, TOP=FP8_MAX, SMALLEST=MIN_AMAX, num_warps=max(1, min(8, padded // 512)),
        **pdl_options(x),
    )  # fmt: skip
    return out


def reference(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    if added is not None:
        x += added
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
