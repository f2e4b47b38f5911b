"""Self-attention of a decoder step: write the K/V of each row's new tokens to its slot, and attend to the slot.

A row has one new token or several (a prompt, or drafted tokens that are verified), each of which also attends to those
before it. A token's result does not depend on the other rows, nor on whether earlier tokens came in the same step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import LOG2_E, has_kernels, pdl_options, require

BLOCK_POSITIONS, N_WARPS = 32, 1  # as measured


@triton.jit
def _load(keys, values, base, start, end, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """K/V of the slot at positions before `end`."""
    positions = start + tl.arange(0, BLOCK)
    is_before = positions < end
    offsets = base + positions[:, None] * HEAD_DIM + dims[None, :]
    key = tl.load(keys + offsets, mask=is_before[:, None], other=0.0)
    value = tl.load(values + offsets, mask=is_before[:, None], other=0.0)
    return key, value


@triton.jit
def _load_new(new_keys, start, first, newest, dims, STATE: tl.constexpr, BLOCK: tl.constexpr):
    """K/V of this step's tokens from position `first` on, before `newest`."""
    positions = start + tl.arange(0, BLOCK)
    is_new = (positions >= first) & (positions < newest)
    offsets = (positions - first)[:, None] * (3 * STATE) + dims[None, :]
    key = tl.load(new_keys + offsets, mask=is_new[:, None], other=0.0)
    value = tl.load(new_keys + STATE + offsets, mask=is_new[:, None], other=0.0)
    return key, value, is_new


@triton.jit
def _self_attention(
    qkv, keys, values, row_slots, newest_positions, out, n_tokens,
    SCALE: tl.constexpr, HEADS: tl.constexpr, POSITIONS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    HAS_SEVERAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, token_row = tl.program_id(0), tl.program_id(1)
    row = token_row // n_tokens
    slot, newest = tl.load(row_slots + row).to(tl.int64), tl.load(newest_positions + token_row)
    first = tl.load(newest_positions + row * n_tokens)  # the position of the row's first new token
    if newest < 0:
        return
    state: tl.constexpr = HEADS * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    base = (slot * HEADS + head) * (POSITIONS * HEAD_DIM)
    key, value = _load(keys, values, base, 0, first, dims, HEAD_DIM, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()  # only new tokens need it: earlier K/V are older than this step
    qkv_row = qkv + token_row.to(tl.int64) * (3 * state) + head * HEAD_DIM + dims
    query = tl.load(qkv_row).to(tl.float32) * SCALE
    new_key, new_value = tl.load(qkv_row + state), tl.load(qkv_row + 2 * state)
    tl.store(keys + base + newest * HEAD_DIM + dims, new_key.to(keys.dtype.element_ty))
    tl.store(values + base + newest * HEAD_DIM + dims, new_value.to(values.dtype.element_ty))

    new_keys = qkv + row.to(tl.int64) * (n_tokens * 3 * state) + state + head * HEAD_DIM
    max_score = tl.sum(query * new_key.to(tl.float32), axis=0)
    total = 1.0
    weighted = new_value.to(tl.float32)
    start = 0
    while start < newest:
        if HAS_SEVERAL:
            later_key, later_value, is_new = _load_new(new_keys, start, first, newest, dims, state, BLOCK)
            key, value = tl.where(is_new[:, None], later_key, key), tl.where(is_new[:, None], later_value, value)
        is_before = start + tl.arange(0, BLOCK) < newest
        scores = tl.where(is_before, tl.sum(key.to(tl.float32) * query[None, :], axis=1), -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, axis=0))
        rescale = tl.exp2(max_score - new_max)
        weights = tl.exp2(scores - new_max)
        total = tl.fma(total, rescale, tl.sum(weights, axis=0))
        weighted = tl.fma(weighted, rescale, tl.sum(weights[:, None] * value.to(tl.float32), axis=0))
        max_score = new_max
        start += BLOCK
        key, value = _load(keys, values, base, start, first, dims, HEAD_DIM, BLOCK)
    tl.store(out + (token_row * HEADS + head) * HEAD_DIM + dims, (weighted / total).to(out.dtype.element_ty))


def self_attention(
    qkv: Tensor,  # [rows * tokens, 3 * heads * head_dim]
    keys: Tensor,  # [slots, heads, positions, head_dim]
    values: Tensor,
    row_slots: Tensor,  # [rows]
    newest: Tensor,  # [rows * tokens]: the position of each token; those with -1, the last of a row, are skipped
) -> Tensor:  # [rows * tokens, heads * head_dim]
    if not has_kernels(qkv):
        return reference(qkv, keys, values, row_slots, newest)
    _, n_heads, n_positions, head_dim = keys.shape
    require(qkv.is_contiguous() and qkv.shape[1] == 3 * n_heads * head_dim, "contiguous queries, keys and values")
    require(keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape, "contiguous K/V")
    require(len(qkv) == len(newest) and len(qkv) % len(row_slots) == 0, "equally many tokens for each row")
    n_tokens = len(qkv) // len(row_slots)
    out = torch.empty(len(qkv), n_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    _self_attention[n_heads, len(qkv)](
        qkv, keys, values, row_slots, newest, out, n_tokens,
        SCALE=head_dim**-0.5 * LOG2_E, HEADS=n_heads, POSITIONS=n_positions, HEAD_DIM=head_dim,
        BLOCK=BLOCK_POSITIONS, HAS_SEVERAL=n_tokens > 1, num_warps=N_WARPS, **pdl_options(qkv),
    )  # fmt: skip
    return out


def reference(qkv: Tensor, keys: Tensor, values: Tensor, row_slots: Tensor, newest: Tensor) -> Tensor:
    _, n_heads, n_positions, head_dim = keys.shape
    slots, newest = row_slots.long().repeat_interleave(len(qkv) // len(row_slots)), newest.long()
    q, k, v = qkv.view(len(qkv), 3, n_heads, head_dim).unbind(1)
    is_active = newest >= 0
    index = slots[is_active], slice(None), newest[is_active]
    keys[index], values[index] = k[is_active].to(keys.dtype), v[is_active].to(values.dtype)
    scores = torch.einsum("rhd,rhtd->rht", q.float(), keys[slots].float()) * head_dim**-0.5
    is_later = torch.arange(n_positions, device=qkv.device) > newest.clamp(min=0)[:, None]
    weights = scores.masked_fill(is_later[:, None], -torch.inf).softmax(-1)
    visible = values[slots].float().masked_fill(is_later[:, None, :, None], 0)
    return torch.einsum("rht,rhtd->rhd", weights, visible).flatten(1).to(qkv.dtype)
