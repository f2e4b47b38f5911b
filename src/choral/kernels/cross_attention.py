"""Cross-attention of a decoder step: each row attends to the K/V of its window's audio, addressed by slot number.

A row has one token or several (a prompt, or drafted tokens that are verified): all of them share one read of the keys
and values, which is most of a large model's step, and memory-bound. With few rows the frames of each are split over
several programs (split-K), so that the whole chip reads. Blocks of frames are reduced by themselves and merged in
order, whether one program does it or several: a token's result depends neither on other rows nor on other tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import FULL_CHIP_PROGRAMS, LOG2_E, has_kernels, pdl_options, require

TILE, FP8_TILE = (128, 4, 2), (32, 1, 3)  # frames of a block, warps and stages, as measured
BLOCK_TOKENS = 16  # the rows of a tensor-core tile: fewer tokens are not faster


@triton.jit
def _load(keys, values, base, first, dims, FRAMES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    frames = first + tl.arange(0, BLOCK)
    is_frame = frames < FRAMES
    key = tl.load(keys + base + frames[None, :] * HEAD_DIM + dims[:, None], mask=is_frame[None, :], other=0.0)
    value = tl.load(values + base + frames[:, None] * HEAD_DIM + dims[None, :], mask=is_frame[:, None], other=0.0)
    return key, value, is_frame


@triton.jit
def _attend(query, key, value, is_frame, scale):
    """Of one block: each token's maximum score, sum of exponentials relative to it, and sum of weighted values."""
    scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * scale
    scores = tl.where(is_frame[None, :], scores, -float("inf"))
    top = tl.max(scores, axis=1)
    weights = tl.exp2(scores - top[:, None])
    weighted = tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
    return top, tl.sum(weights, axis=1), weighted


@triton.jit
def _merge(top, total, weighted, block_top, block_total, block_weighted):
    new_top = tl.maximum(top, block_top)
    rescale, block_rescale = tl.exp2(top - new_top), tl.exp2(block_top - new_top)
    total = tl.fma(total, rescale, block_total * block_rescale)
    weighted = tl.fma(weighted, rescale[:, None], block_weighted * block_rescale[:, None])
    return new_top, total, weighted


@triton.jit
def _cross_attention(
    queries, keys, values, key_scales, value_scales, audio_slots, newest_positions, out,
    block_tops, block_totals, block_sums, n_tokens, n_token_blocks,
    SCALE: tl.constexpr, HEADS: tl.constexpr, FRAMES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    IS_SPLIT: tl.constexpr, BLOCK: tl.constexpr, IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, row, split = tl.program_id(0), tl.program_id(1) // n_token_blocks, tl.program_id(2)
    first_token = tl.program_id(1) % n_token_blocks * BLOCK_TOKENS
    audio_slot = tl.load(audio_slots + row).to(tl.int64)
    if tl.load(newest_positions + row * n_tokens + first_token) < 0:
        return
    slot_head = audio_slot * HEADS + head
    dims = tl.arange(0, HEAD_DIM)
    base = slot_head * (FRAMES * HEAD_DIM)
    scale, value_scale = SCALE, 1.0
    if IS_FP8:
        scale *= tl.load(key_scales + slot_head)
        value_scale = tl.load(value_scales + slot_head)
    if IS_SPLIT:  # one block each, written before this step: only the query needs the wait
        key, value, is_frame = _load(keys, values, base, split * BLOCK, dims, FRAMES, HEAD_DIM, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tokens = first_token + tl.arange(0, BLOCK_TOKENS)
    is_token = tokens < n_tokens
    token_rows = (row * n_tokens + tokens).to(tl.int64)
    offsets = (token_rows * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(queries + offsets, mask=is_token[:, None], other=0.0)
    if IS_FP8:
        query = query.to(tl.float16)  # holds every fp8 value, and converts from it in one instruction
    if IS_SPLIT:
        top, total, weighted = _attend(query, key, value, is_frame, scale)
        part = (token_rows * HEADS + head) * tl.num_programs(2) + split
        tl.store(block_tops + part, top, mask=is_token)
        tl.store(block_totals + part, total, mask=is_token)
        tl.store(block_sums + part[:, None] * HEAD_DIM + dims[None, :], weighted, mask=is_token[:, None])
    else:
        top = tl.full([BLOCK_TOKENS], -float("inf"), tl.float32)
        total, weighted = tl.zeros([BLOCK_TOKENS], tl.float32), tl.zeros([BLOCK_TOKENS, HEAD_DIM], tl.float32)
        for first in range(0, FRAMES, BLOCK):
            key, value, is_frame = _load(keys, values, base, first, dims, FRAMES, HEAD_DIM, BLOCK)
            block_top, block_total, block_weighted = _attend(query, key, value, is_frame, scale)
            top, total, weighted = _merge(top, total, weighted, block_top, block_total, block_weighted)
        result = weighted * (value_scale / total)[:, None]
        tl.store(out + offsets, result.to(out.dtype.element_ty), mask=is_token[:, None])


@triton.jit
def _merge_splits(
    block_tops, block_totals, block_sums, value_scales, audio_slots, newest_positions, out, n_tokens,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, row = tl.program_id(0), tl.program_id(1)
    newest, value_scale = tl.load(newest_positions + row), 1.0
    if IS_FP8:
        value_scale = tl.load(value_scales + tl.load(audio_slots + row // n_tokens).to(tl.int64) * HEADS + head)
    if newest < 0:
        return
    if PDL:
        tl.extra.cuda.gdc_wait()
    dims, one = tl.arange(0, HEAD_DIM), tl.zeros([1], tl.int32)
    part = (row * HEADS + head) * SPLITS + one
    top, total = tl.full([1], -float("inf"), tl.float32), tl.zeros([1], tl.float32)
    weighted = tl.zeros([1, HEAD_DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        block_top, block_total = tl.load(block_tops + part + split), tl.load(block_totals + part + split)
        block_weighted = tl.load(block_sums + (part + split)[:, None] * HEAD_DIM + dims[None, :])
        top, total, weighted = _merge(top, total, weighted, block_top, block_total, block_weighted)
    result = weighted * (value_scale / total)[:, None]
    tl.store(out + (row * HEADS + head) * HEAD_DIM + one[:, None] + dims[None, :], result.to(out.dtype.element_ty))


def splits_for(n_programs: int, n_frames: int, block_frames: int) -> int:
    """One program for each block of frames, or one for all of them if the programs fill the chip."""
    return 1 if n_programs >= FULL_CHIP_PROGRAMS else -(-n_frames // block_frames)


def cross_attention(
    queries: Tensor,  # [rows * tokens, heads, head_dim]
    keys: Tensor,  # [slots, heads, frames, head_dim]
    values: Tensor,
    audio_slots: Tensor,  # [rows]: the slot of each row's cross-attention K/V
    newest: Tensor,  # [rows * tokens]: the position of each token; those with -1, the last of a row, are skipped
    key_scales: Tensor | None = None,  # [slots, heads], of keys and values in fp8
    value_scales: Tensor | None = None,
) -> Tensor:  # [rows * tokens, heads, head_dim]
    if not has_kernels(queries):
        return reference(queries, keys, values, audio_slots, key_scales, value_scales)
    (n_queries, n_heads, head_dim), n_rows, n_frames = queries.shape, len(audio_slots), keys.shape[2]
    require(queries.is_contiguous() and n_queries % n_rows == 0, "contiguous queries, equally many for each row")
    require(keys.is_contiguous() and values.is_contiguous(), "contiguous keys and values")
    require(keys.shape[1:] == values.shape[1:] == (n_heads, n_frames, head_dim), "K/V that match the queries")
    n_tokens, is_fp8 = n_queries // n_rows, key_scales is not None
    n_token_blocks = triton.cdiv(n_tokens, BLOCK_TOKENS)
    block_frames, n_warps, n_stages = FP8_TILE if is_fp8 else TILE
    n_splits = splits_for(n_rows * n_token_blocks * n_heads, n_frames, block_frames)
    out = torch.empty_like(queries)
    n_parts = n_queries * n_heads * n_splits if n_splits > 1 else 1
    tops, totals = torch.empty(2, n_parts, dtype=torch.float32, device=queries.device)
    sums = torch.empty(n_parts, head_dim, dtype=torch.float32, device=queries.device)
    # Whether a product is rounded before it is added must not depend on the variant of the kernel.
    options = {"enable_fp_fusion": False, **pdl_options(queries)}
    _cross_attention[n_heads, n_rows * n_token_blocks, n_splits](
        queries, keys, values, key_scales, value_scales, audio_slots, newest, out, tops, totals, sums,
        n_tokens, n_token_blocks,
        SCALE=head_dim**-0.5 * LOG2_E, HEADS=n_heads, FRAMES=n_frames, HEAD_DIM=head_dim, BLOCK_TOKENS=BLOCK_TOKENS,
        IS_SPLIT=n_splits > 1, BLOCK=block_frames, IS_FP8=is_fp8, num_warps=n_warps, num_stages=n_stages, **options,
    )  # fmt: skip
    if n_splits > 1:
        _merge_splits[n_heads, n_queries](
            tops, totals, sums, value_scales, audio_slots, newest, out, n_tokens, HEADS=n_heads, HEAD_DIM=head_dim,
            SPLITS=n_splits, IS_FP8=is_fp8, num_warps=1, **options,
        )  # fmt: skip
    return out


def reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    audio_slots: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    audio = audio_slots.long()
    k, v = keys[audio].float(), values[audio].float()
    if key_scales is not None and value_scales is not None:
        k, v = k * key_scales[audio][..., None, None], v * value_scales[audio][..., None, None]
    q = queries.float().unflatten(0, (len(audio), -1))  # [rows, tokens, heads, head_dim]
    scores = torch.einsum("rnhd,rhtd->rhnt", q, k) * queries.shape[-1] ** -0.5
    return torch.einsum("rhnt,rhtd->rnhd", scores.softmax(-1), v).flatten(0, 1).to(queries.dtype)
