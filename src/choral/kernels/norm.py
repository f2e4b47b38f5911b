"""Layer norm that first adds, in place, the bias of the product before: one pass over the states instead of three."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import has_kernels, require

EPSILON = 1e-5


@triton.jit
def _norm(
    x, added, weight, bias, out, N: tl.constexpr, PADDED: tl.constexpr, HAS_ADDED: tl.constexpr, EPS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    is_column = columns < N
    own = x + row * N + columns
    values = tl.load(own, mask=is_column, other=0.0).to(tl.float32)
    if HAS_ADDED:
        values += tl.load(added + columns, mask=is_column, other=0.0).to(tl.float32)
        tl.store(own, values.to(x.dtype.element_ty), mask=is_column)
    mean = tl.sum(values, axis=0) / N
    centred = tl.where(is_column, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / N + EPS)
    gain = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * N + columns, (centred * scale * gain + shift).to(out.dtype.element_ty), mask=is_column)


def add_and_norm(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:  # [rows, state]
    """x gets what is added; the result is x after the norm."""
    if not has_kernels(x):
        return reference(x, added, weight, bias)
    n_rows, n_state = x.shape
    require(
        x.is_contiguous() and weight.shape == bias.shape == (n_state,), "one contiguous row of states after another"
    )
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(n_state)
    _norm[(n_rows,)](
        x, added, weight, bias, out, N=n_state, PADDED=padded, HAS_ADDED=added is not None, EPS=EPSILON,
        num_warps=max(1, min(8, padded // 512)),
    )  # fmt: skip
    return out


def reference(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    if added is not None:
        x += added
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
