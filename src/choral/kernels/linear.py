"""Linear layers of the decoder, for any number of rows, whose results do not depend on that number.

Every element is a sum over the inner dimension in one fixed order: tensor-core instructions, 16 elements at a time,
along each half of a slice of it; then the halves, then the slices. Tiles differ with the number of rows, and only
decide which program computes an element. With few rows, programs request their weights while earlier kernels still run.

A layer norm before a linear layer is folded into it: gains and biases into the weights (`fold_norm`), mean and scale of
a row into the sum of each element.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from choral.kernels.gemv import MAX_ROWS, gemv
from choral.kernels.launch import has_kernels, pdl_options, require
from choral.kernels.norm import EPSILON

MAX_FEW_ROWS = 8  # whose statistics each program computes itself
STATISTICS_WARPS = 2  # the order of a sum depends on it, so it is the same everywhere
LONG_INNER, LONG_SLICES = 1536, 4  # from this length on, slices of the inner dimension run in parallel
N_COUNTERS = 4096
EXACT = {"enable_fp_fusion": False}  # the compiler may not decide which products and sums are rounded together


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    inner: int
    n_warps: int
    n_stages: int


def tile_for(n_rows: int) -> Tile:
    """As measured; results are the same with any. There are few, because each is compiled for every kind of layer."""
    if n_rows <= MAX_FEW_ROWS:
        return Tile(16, 16, 128, STATISTICS_WARPS, 5)
    if n_rows <= 16:
        return Tile(16, 32, 64, 4, 4)
    return Tile(64, 64, 64, 4, 3) if n_rows <= 768 else Tile(128, 128, 64, 8, 3)


def fold_norm(norm: nn.LayerNorm, *layers: nn.Linear) -> None:
    """Make the linear layers behind a norm contain its gains and biases; the norm keeps mean and scale."""
    gain, shift = norm.weight.float(), norm.bias.float()
    for layer in layers:
        weight = layer.weight.float()
        bias = weight @ shift + (0 if layer.bias is None else layer.bias.float())
        layer.bias = nn.Parameter(bias.to(layer.weight.dtype), requires_grad=False)
        layer.weight = nn.Parameter((weight * gain).to(layer.weight.dtype), requires_grad=False)
    norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
    norm.bias = nn.Parameter(torch.zeros_like(norm.bias), requires_grad=False)


class LinearLayer:
    """Weights [out, in] and biases [out] of a linear layer; `is_normed`: behind a layer norm that is folded into it."""

    def __init__(self, weight: Tensor, bias: Tensor, *, is_normed: bool = False, is_invariant: bool = True) -> None:
        """With `is_invariant` off, one or two rows take less time, and their results differ in the last bits."""
        require(weight.is_contiguous() and len(bias) == len(weight), "contiguous weights")
        self.weight, self.bias, self.is_normed, self._is_invariant = weight, bias, is_normed, is_invariant
        self.totals = weight.float().sum(1) if is_normed else None  # the product of a row whose states are all one
        self.n_slices = LONG_SLICES if weight.shape[1] >= LONG_INNER else 1
        self._counters = torch.zeros(N_COUNTERS if self.n_slices > 1 else 1, dtype=torch.int32, device=weight.device)

    def __call__(
        self, x: Tensor, *, gelu: bool = False, dtype: torch.dtype | None = None, is_first: bool = False
    ) -> Tensor:
        """[rows, in] → [rows, out]; `is_first`: it starts a chain of dependent launches."""
        if not has_kernels(x):
            return self.reference(x, gelu=gelu, dtype=dtype)
        out = torch.empty(len(x), len(self.weight), dtype=dtype or x.dtype, device=x.device)
        return self._launch(x, out, gelu=gelu, is_added=False, is_first=is_first)

    def add_to(self, states: Tensor, x: Tensor) -> None:
        """Add the result to `states` in place."""
        if not has_kernels(x):
            states += self.reference(x)
            return
        require(states.is_contiguous() and states.shape == (len(x), len(self.weight)), "contiguous states")
        self._launch(x, states, gelu=False, is_added=True, is_first=False)

    def reference(self, x: Tensor, *, gelu: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        rows = F.layer_norm(x, x.shape[-1:], None, None, EPSILON) if self.is_normed else x
        result = F.linear(rows, self.weight, self.bias)
        return (F.gelu(result) if gelu else result).to(dtype or x.dtype)

    def _launch(self, x: Tensor, out: Tensor, *, gelu: bool, is_added: bool, is_first: bool) -> Tensor:
        (n_rows, n_in), n_out = x.shape, len(self.weight)
        require(x.is_contiguous() and self.weight.shape[1] == n_in, "contiguous rows that match the weights")
        if n_rows <= MAX_ROWS and not self._is_invariant:
            gemv(x, self.weight, self.bias, self.totals, out, gelu=gelu, is_added=is_added, is_first=is_first)
            return out
        partials = x.new_empty(n_rows * n_out * self.n_slices if self.n_slices > 1 else 1, dtype=torch.float32)
        options = {
            "N": n_out, "K": n_in, "SLICES": self.n_slices, "HALF": n_in // self.n_slices // 2,
            "HAS_NORM": self.is_normed, "HAS_GELU": gelu, "IS_ADDED": is_added, **EXACT,
        }  # fmt: skip
        tile, is_few = tile_for(n_rows), n_rows <= MAX_FEW_ROWS
        n_few_rows = 0 if not is_few else MAX_FEW_ROWS if n_rows > 1 and self.is_normed else 1
        has_statistics = self.is_normed and not is_few
        statistics = row_statistics(x, is_first=is_first) if has_statistics else None
        grid = triton.cdiv(n_out, tile.columns), triton.cdiv(n_rows, tile.rows), self.n_slices
        require(self.n_slices == 1 or grid[0] * grid[1] <= N_COUNTERS, "fewer rows")
        _linear[grid](
            x, self.weight, self.bias, self.totals, statistics, out, partials, self._counters, n_rows,
            FEW_ROWS=n_few_rows, PADDED_K=triton.next_power_of_2(n_in), EPS=EPSILON,
            ROWS=tile.rows, COLUMNS=tile.columns, INNER=tile.inner, num_warps=tile.n_warps, num_stages=tile.n_stages,
            **options, **pdl_options(x, is_first=is_first and not has_statistics),
        )  # fmt: skip
        return out


def row_statistics(x: Tensor, *, is_first: bool = False) -> Tensor:  # [rows, state] → [rows, 2]
    """Mean and inverse standard deviation of each row, with the same bits as for few rows."""
    statistics = torch.empty(len(x), 2, dtype=torch.float32, device=x.device)
    n_state = x.shape[1]
    _row_statistics[(len(x),)](
        x, statistics, K=n_state, PADDED_K=triton.next_power_of_2(n_state), EPS=EPSILON, num_warps=STATISTICS_WARPS,
        **EXACT, **pdl_options(x, is_first=is_first),
    )  # fmt: skip
    return statistics


@triton.jit
def _load_row(x, row, n_rows, K: tl.constexpr, PADDED_K: tl.constexpr):
    states = tl.arange(0, PADDED_K)
    end = tl.where(row < n_rows, K, 0)  # rows of the tile that are not there count as zeros
    return tl.load(x + row * K + states, mask=states < end, other=0.0)


@triton.jit
def _statistics_of(states, K: tl.constexpr, EPS: tl.constexpr):
    values = states.to(tl.float32)
    mean = tl.sum(values, axis=0) / K
    variance = tl.sum(values * values, axis=0) / K - mean * mean
    return mean, tl.rsqrt(tl.maximum(variance, 0.0) + EPS)


@triton.jit
def _row_statistics(
    x, statistics, K: tl.constexpr, PADDED_K: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    mean, scale = _statistics_of(_load_row(x, row.to(tl.int64), row + 1, K, PADDED_K), K, EPS)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, scale)


@triton.jit
def _load_residual(out, rows, columns, is_row, N: tl.constexpr):
    target = out + rows[:, None].to(tl.int64) * N + columns[None, :]
    return tl.load(target, mask=is_row[:, None] & (columns < N)[None, :], other=0.0)


@triton.jit
def _finish(
    product, rows, columns, is_row, means, scales, shifts, mean_products, residual, out,
    N: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GELU: tl.constexpr, IS_ADDED: tl.constexpr,
):  # fmt: skip
    """Norm, bias, activation and residual sum of a tile, and its store."""
    result = product
    if HAS_NORM:
        result = tl.fma(means[:, None], -mean_products[None, :], product) * scales[:, None]
    result += shifts[None, :]
    if HAS_GELU:
        result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
    if IS_ADDED:
        result += residual.to(tl.float32)
    target = out + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=is_row[:, None] & (columns < N)[None, :])


@triton.jit
def _is_last_slice(
    product, rows, columns, is_row, part, n_rows, partials, counter, N: tl.constexpr, SLICES: tl.constexpr
):  # fmt: skip
    """Store the product of this slice; true for the program that stores the last one of a tile."""
    is_element = is_row[:, None] & (columns < N)[None, :]
    offsets = (part * n_rows + rows).to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(partials + offsets, product, mask=is_element)
    tl.debug_barrier()  # all threads have stored before one of them counts
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SLICES - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def _add_slices(rows, columns, is_row, n_rows, partials, N: tl.constexpr, SLICES: tl.constexpr):
    is_element = is_row[:, None] & (columns < N)[None, :]
    offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    total = tl.load(partials + offsets, mask=is_element, other=0.0, cache_modifier=".cg")
    for _ in tl.static_range(1, SLICES):
        offsets += n_rows * N
        total += tl.load(partials + offsets, mask=is_element, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _prefetch(weight, columns, first, N: tl.constexpr, K: tl.constexpr, SLICES: tl.constexpr, PADDED_K: tl.constexpr):
    """Request a tile of the weights from memory; they arrive in the L2 cache."""
    lines = tl.minimum(tl.arange(0, PADDED_K // 64) * 64, K // SLICES - 1)  # of 128 bytes
    places = weight + tl.minimum(columns, N - 1)[:, None].to(tl.int64) * K + first + lines[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _product(
    x, weight, rows, columns, first, is_row, is_column,
    N: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    """The product over a slice of the inner dimension, its two halves side by side."""
    inner = tl.arange(0, INNER)
    x_tile = x + rows[:, None].to(tl.int64) * K + inner[None, :] + first
    weight_tile = weight + columns[None, :].to(tl.int64) * K + inner[:, None] + first
    product, second = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, HALF, INNER):
        is_inner = inner < HALF - start
        is_value, is_weight = is_row[:, None] & is_inner[None, :], is_column[None, :] & is_inner[:, None]
        values = tl.load(x_tile + start, mask=is_value, other=0.0)
        weights = tl.load(weight_tile + start, mask=is_weight, other=0.0)
        product = tl.dot(values, weights, product, input_precision="ieee")
        values = tl.load(x_tile + (HALF + start), mask=is_value, other=0.0)
        weights = tl.load(weight_tile + (HALF + start), mask=is_weight, other=0.0)
        second = tl.dot(values, weights, second, input_precision="ieee")
    return product + second


@triton.jit
def _linear(
    x, weight, bias, totals, statistics, out, partials, counters, n_rows,
    FEW_ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr, SLICES: tl.constexpr,
    HALF: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GELU: tl.constexpr, IS_ADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    column_tile, row_tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns = row_tile * ROWS + tl.arange(0, ROWS), column_tile * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < n_rows, columns < N
    first = part * (2 * HALF)
    shifts = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    mean_products = shifts
    if HAS_NORM:
        mean_products = tl.load(totals + columns, mask=is_column, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if FEW_ROWS > 0:
            _prefetch(weight, columns, first, N, K, SLICES, PADDED_K // SLICES)
        tl.extra.cuda.gdc_wait()
    # With few rows latency is all: everything that is read is requested before the product.
    states, residual = (), 0.0
    if HAS_NORM:
        for row in tl.static_range(FEW_ROWS):
            states = states + (_load_row(x, row, n_rows, K, PADDED_K),)  # type: ignore[assignment]  # noqa: RUF005
    if IS_ADDED and FEW_ROWS > 0:
        residual = _load_residual(out, rows, columns, is_row, N)
    product = _product(x, weight, rows, columns, first, is_row, is_column, N, K, HALF, ROWS, COLUMNS, INNER)
    means, scales = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    if HAS_NORM:
        if FEW_ROWS > 0:
            for row in tl.static_range(FEW_ROWS):
                mean, scale = _statistics_of(states[row], K, EPS)
                means, scales = tl.where(rows == row, mean, means), tl.where(rows == row, scale, scales)
        else:
            means = tl.load(statistics + 2 * rows, mask=is_row, other=0.0)
            scales = tl.load(statistics + 2 * rows + 1, mask=is_row, other=0.0)
    if SLICES > 1:
        counter = counters + row_tile * tl.num_programs(0) + column_tile
        if not _is_last_slice(product, rows, columns, is_row, part, n_rows, partials, counter, N, SLICES):
            return
        product = _add_slices(rows, columns, is_row, n_rows, partials, N, SLICES)
    if IS_ADDED and FEW_ROWS == 0:
        residual = _load_residual(out, rows, columns, is_row, N)
    _finish(
        product, rows, columns, is_row, means, scales, shifts, mean_products, residual, out,
        N, HAS_NORM, HAS_GELU, IS_ADDED,
    )  # fmt: skip
