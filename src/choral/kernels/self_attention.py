"""Each row's newest token is written to its slot and attends to all that was written there before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import LOG2_E, has_kernels, pdl_options, require

MANY_PROGRAMS = 528  # from here on the chip is full


@triton.jit
def _load(keys, values, base, first, newest, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    positions = first + tl.arange(0, BLOCK)
    is_before = positions < newest
    places = base + positions[:, None] * HEAD_DIM + dims[None, :]
    key = tl.load(keys + places, mask=is_before[:, None], other=0.0)
    value = tl.load(values + places, mask=is_before[:, None], other=0.0)
    return key, value, is_before


@triton.jit
def _self_attention(
    qkv, keys, values, row_slots, newest_positions, out,
    SCALE: tl.constexpr, HEADS: tl.constexpr, POSITIONS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, row = tl.program_id(0), tl.program_id(1)
    slot, newest = tl.load(row_slots + row).to(tl.int64), tl.load(newest_positions + row)
    if newest < 0:
        return
    state: tl.constexpr = HEADS * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    base = (slot * HEADS + head) * (POSITIONS * HEAD_DIM)
    key, value, is_before = _load(keys, values, base, 0, newest, dims, HEAD_DIM, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()  # what was written before is older than this step
    own = qkv + row * (3 * state) + head * HEAD_DIM + dims
    query = tl.load(own).to(tl.float32) * SCALE
    new_key, new_value = tl.load(own + state), tl.load(own + 2 * state)
    tl.store(keys + base + newest * HEAD_DIM + dims, new_key.to(keys.dtype.element_ty))
    tl.store(values + base + newest * HEAD_DIM + dims, new_value.to(values.dtype.element_ty))

    top = tl.sum(query * new_key.to(tl.float32), axis=0)
    total = 1.0
    written = new_value.to(tl.float32)
    start = 0
    while start < newest:
        scores = tl.where(is_before, tl.sum(key.to(tl.float32) * query[None, :], axis=1), -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(scores - new_top)
        total = total * shrink + tl.sum(weights, axis=0)
        written = written * shrink + tl.sum(weights[:, None] * value.to(tl.float32), axis=0)
        top = new_top
        start += BLOCK
        key, value, is_before = _load(keys, values, base, start, newest, dims, HEAD_DIM, BLOCK)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, (written / total).to(out.dtype.element_ty))


def self_attention(
    qkv: Tensor,  # [rows, 3 * heads * head_dim]
    keys: Tensor,  # [slots, heads, positions, head_dim]
    values: Tensor,
    row_slots: Tensor,  # [rows]
    newest: Tensor,  # [rows], the position of the newest token; rows with -1 are left out
) -> Tensor:  # [rows, heads * head_dim]
    if not has_kernels(qkv):
        return reference(qkv, keys, values, row_slots, newest)
    _, n_heads, n_positions, head_dim = keys.shape
    require(qkv.is_contiguous() and qkv.shape[1] == 3 * n_heads * head_dim, "queries, keys and values side by side")
    require(keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape, "contiguous places")
    out = torch.empty(len(qkv), n_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    block, n_warps = tile_for(n_heads * len(qkv))
    _self_attention[n_heads, len(qkv)](
        qkv, keys, values, row_slots, newest, out,
        SCALE=head_dim**-0.5 * LOG2_E, HEADS=n_heads, POSITIONS=n_positions, HEAD_DIM=head_dim,
        BLOCK=block, num_warps=n_warps, **pdl_options(qkv),
    )  # fmt: skip
    return out


def tile_for(n_programs: int) -> tuple[int, int]:
    """Positions a block and warps, by trial."""
    return (32, 1) if n_programs >= MANY_PROGRAMS else (64, 4)


def reference(qkv: Tensor, keys: Tensor, values: Tensor, row_slots: Tensor, newest: Tensor) -> Tensor:
    _, n_heads, n_positions, head_dim = keys.shape
    slots, newest = row_slots.long(), newest.long()
    q, k, v = qkv.view(len(qkv), 3, n_heads, head_dim).unbind(1)
    is_open = newest >= 0
    places = slots[is_open], slice(None), newest[is_open]
    keys[places], values[places] = k[is_open].to(keys.dtype), v[is_open].to(values.dtype)
    scores = torch.einsum("rhd,rhtd->rht", q.float(), keys[slots].float()) * head_dim**-0.5
    is_behind = torch.arange(n_positions, device=qkv.device) > newest.clamp(min=0)[:, None]
    weights = scores.masked_fill(is_behind[:, None], -torch.inf).softmax(-1)
    seen = values[slots].float().masked_fill(is_behind[:, None, :, None], 0)
    return torch.einsum("rht,rhtd->rhd", weights, seen).flatten(1).to(qkv.dtype)
