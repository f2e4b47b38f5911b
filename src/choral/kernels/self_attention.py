"""Self-attention of a decoder step: write the K/V of each row's newest token to its slot, and attend to the slot."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import FULL_CHIP_PROGRAMS, LOG2_E, has_kernels, pdl_options, require


@triton.jit
def _load(keys, values, base, first, newest, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    positions = first + tl.arange(0, BLOCK)
    is_before = positions < newest
    offsets = base + positions[:, None] * HEAD_DIM + dims[None, :]
    key = tl.load(keys + offsets, mask=is_before[:, None], other=0.0)
    value = tl.load(values + offsets, mask=is_before[:, None], other=0.0)
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
        tl.extra.cuda.gdc_wait()  # only the new token needs it: earlier K/V are older than this step
    qkv_row = qkv + row * (3 * state) + head * HEAD_DIM + dims
    query = tl.load(qkv_row).to(tl.float32) * SCALE
    new_key, new_value = tl.load(qkv_row + state), tl.load(qkv_row + 2 * state)
    tl.store(keys + base + newest * HEAD_DIM + dims, new_key.to(keys.dtype.element_ty))
    tl.store(values + base + newest * HEAD_DIM + dims, new_value.to(values.dtype.element_ty))

    max_score = tl.sum(query * new_key.to(tl.float32), axis=0)
    total = 1.0
    weighted = new_value.to(tl.float32)
    start = 0
    while start < newest:
        scores = tl.where(is_before, tl.sum(key.to(tl.float32) * query[None, :], axis=1), -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, axis=0))
        rescale = tl.exp2(max_score - new_max)
        weights = tl.exp2(scores - new_max)
        total = total * rescale + tl.sum(weights, axis=0)
        weighted = weighted * rescale + tl.sum(weights[:, None] * value.to(tl.float32), axis=0)
        max_score = new_max
        start += BLOCK
        key, value, is_before = _load(keys, values, base, start, newest, dims, HEAD_DIM, BLOCK)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, (weighted / total).to(out.dtype.element_ty))


def self_attention(
    qkv: Tensor,  # [rows, 3 * heads * head_dim]
    keys: Tensor,  # [slots, heads, positions, head_dim]
    values: Tensor,
    row_slots: Tensor,  # [rows]
    newest: Tensor,  # [rows]: the position of the newest token; rows with -1 are skipped
) -> Tensor:  # [rows, heads * head_dim]
    if not has_kernels(qkv):
        return reference(qkv, keys, values, row_slots, newest)
    _, n_heads, n_positions, head_dim = keys.shape
    require(qkv.is_contiguous() and qkv.shape[1] == 3 * n_heads * head_dim, "contiguous queries, keys and values")
    require(keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape, "contiguous K/V")
    out = torch.empty(len(qkv), n_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    block, n_warps = tile_for(n_heads * len(qkv))
    _self_attention[n_heads, len(qkv)](
        qkv, keys, values, row_slots, newest, out,
        SCALE=head_dim**-0.5 * LOG2_E, HEADS=n_heads, POSITIONS=n_positions, HEAD_DIM=head_dim,
        BLOCK=block, num_warps=n_warps, **pdl_options(qkv),
    )  # fmt: skip
    return out


def tile_for(n_programs: int) -> tuple[int, int]:
    """Positions per block and number of warps, as measured."""
    return (32, 1) if n_programs >= FULL_CHIP_PROGRAMS else (64, 4)


def reference(qkv: Tensor, keys: Tensor, values: Tensor, row_slots: Tensor, newest: Tensor) -> Tensor:
    _, n_heads, n_positions, head_dim = keys.shape
    slots, newest = row_slots.long(), newest.long()
    q, k, v = qkv.view(len(qkv), 3, n_heads, head_dim).unbind(1)
    is_active = newest >= 0
    index = slots[is_active], slice(None), newest[is_active]
    keys[index], values[index] = k[is_active].to(keys.dtype), v[is_active].to(values.dtype)
    scores = torch.einsum("rhd,rhtd->rht", q.float(), keys[slots].float()) * head_dim**-0.5
    is_later = torch.arange(n_positions, device=qkv.device) > newest.clamp(min=0)[:, None]
    weights = scores.masked_fill(is_later[:, None], -torch.inf).softmax(-1)
    visible = values[slots].float().masked_fill(is_later[:, None, :, None], 0)
    return torch.einsum("rht,rhtd->rhd", weights, visible).flatten(1).to(qkv.dtype)
