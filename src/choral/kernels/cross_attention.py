"""Cross-attention of a decoder step: each row attends to the K/V of its window's audio, addressed by slot number.

A token reads all of its window's keys and values once; that is most of a large model's step, and memory-bound. With few
rows the frames of each are split over several programs (split-K), so that the whole chip reads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import FULL_CHIP_PROGRAMS, LOG2_E, has_kernels, pdl_options, require

BLOCK_FRAMES = 64  # this and the number of warps were measured


@triton.jit
def _load(keys, values, base, first, dims, FRAMES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    frames = first + tl.arange(0, BLOCK)
    is_frame = frames < FRAMES
    offsets = base + frames[:, None] * HEAD_DIM + dims[None, :]
    key = tl.load(keys + offsets, mask=is_frame[:, None], other=0.0)
    value = tl.load(values + offsets, mask=is_frame[:, None], other=0.0)
    return key, value, is_frame


@triton.jit
def _cross_attention(
    queries, keys, values, key_scales, value_scales, audio_slots, newest_positions, out,
    partial_sums, partial_logsumexps,
    SCALE: tl.constexpr, HEADS: tl.constexpr, FRAMES: tl.constexpr, HEAD_DIM: tl.constexpr,
    QUERY_STRIDE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row, head, split = tl.program_id(1), tl.program_id(0), tl.program_id(2)
    audio_slot, newest = tl.load(audio_slots + row).to(tl.int64), tl.load(newest_positions + row)
    if newest < 0:
        return
    slot_head = audio_slot * HEADS + head
    dims = tl.arange(0, HEAD_DIM)
    base = slot_head * (FRAMES * HEAD_DIM)
    scale, value_scale = SCALE, 1.0
    if IS_FP8:
        scale *= tl.load(key_scales + slot_head)
        value_scale = tl.load(value_scales + slot_head)
    if SPLITS > 1:  # one block each, written before this step: only the query needs the wait
        key, value, is_frame = _load(keys, values, base, split * BLOCK, dims, FRAMES, HEAD_DIM, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
    query = tl.load(queries + row * QUERY_STRIDE + head * HEAD_DIM + dims).to(tl.float32) * scale
    if SPLITS > 1:
        scores = tl.where(is_frame, tl.sum(key.to(tl.float32) * query[None, :], axis=1), -float("inf"))
        max_score = tl.max(scores, axis=0)
        weights = tl.exp2(scores - max_score)
        total = tl.sum(weights, axis=0)
        weighted = tl.sum(weights[:, None] * value.to(tl.float32), axis=0)
    else:
        max_score, total = -float("inf"), 0.0
        weighted = tl.zeros([HEAD_DIM], tl.float32)
        for first in range(0, FRAMES, BLOCK):
            key, value, is_frame = _load(keys, values, base, first, dims, FRAMES, HEAD_DIM, BLOCK)
            scores = tl.where(is_frame, tl.sum(key.to(tl.float32) * query[None, :], axis=1), -float("inf"))
            new_max = tl.maximum(max_score, tl.max(scores, axis=0))
            rescale = tl.exp2(max_score - new_max)
            weights = tl.exp2(scores - new_max)
            total = total * rescale + tl.sum(weights, axis=0)
            weighted = weighted * rescale + tl.sum(weights[:, None] * value.to(tl.float32), axis=0)
            max_score = new_max
    if SPLITS == 1:
        result = weighted * (value_scale / total)
        tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, result.to(out.dtype.element_ty))
    else:
        part = (row * HEADS + head) * SPLITS + split
        tl.store(partial_sums + part * HEAD_DIM + dims, weighted * (value_scale / total))
        tl.store(partial_logsumexps + part, max_score + tl.log2(total))


@triton.jit
def _combine_splits(
    partial_sums, partial_logsumexps, newest_positions, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head, row = tl.program_id(0), tl.program_id(1)
    if tl.load(newest_positions + row) < 0:
        return
    splits, dims = tl.arange(0, PADDED), tl.arange(0, HEAD_DIM)
    part = (row * HEADS + head) * SPLITS
    logsumexps = tl.load(partial_logsumexps + part + splits, mask=splits < SPLITS, other=-float("inf"))
    weights = tl.exp2(logsumexps - tl.max(logsumexps, axis=0))
    offsets = (part + splits)[:, None] * HEAD_DIM + dims[None, :]
    sums = tl.load(partial_sums + offsets, mask=(splits < SPLITS)[:, None], other=0.0)
    result = tl.sum(sums * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, result.to(out.dtype.element_ty))


def splits_for(n_rows: int, n_heads: int, n_frames: int) -> int:
    """One program for each block of frames, or one for all of them if the rows fill the chip."""
    is_chip_full = n_rows * n_heads >= FULL_CHIP_PROGRAMS
    return 1 if is_chip_full else -(-n_frames // BLOCK_FRAMES)


def cross_attention(
    queries: Tensor,  # [rows, heads, head_dim]; the heads of a row are contiguous
    keys: Tensor,  # [slots, heads, frames, head_dim]
    values: Tensor,
    audio_slots: Tensor,  # [rows]: the slot of each row's cross-attention K/V
    newest: Tensor,  # [rows]: the position of the newest token; rows with -1 are skipped
    key_scales: Tensor | None = None,  # [slots, heads], of keys and values in fp8
    value_scales: Tensor | None = None,
) -> Tensor:  # [rows, heads, head_dim]
    if not has_kernels(queries):
        return reference(queries, keys, values, audio_slots, key_scales, value_scales)
    n_rows, n_heads, head_dim = queries.shape
    n_frames = keys.shape[2]
    require(queries.stride()[1:] == (head_dim, 1), "contiguous heads in a query")
    require(keys.is_contiguous() and values.is_contiguous(), "contiguous keys and values")
    require(keys.shape[1:] == values.shape[1:] == (n_heads, n_frames, head_dim), "K/V that match the queries")
    n_splits = splits_for(n_rows, n_heads, n_frames)
    out = torch.empty(n_rows, n_heads, head_dim, dtype=queries.dtype, device=queries.device)
    n_parts = n_rows * n_heads * n_splits if n_splits > 1 else 1
    partial_sums = torch.empty(n_parts, head_dim, dtype=torch.float32, device=queries.device)
    partial_logsumexps = torch.empty(n_parts, dtype=torch.float32, device=queries.device)
    scale = head_dim**-0.5 * LOG2_E
    _cross_attention[n_heads, n_rows, n_splits](
        queries, keys, values, key_scales, value_scales, audio_slots, newest, out,
        partial_sums, partial_logsumexps, SCALE=scale, HEADS=n_heads, FRAMES=n_frames, HEAD_DIM=head_dim,
        QUERY_STRIDE=queries.stride(0), SPLITS=n_splits, BLOCK=BLOCK_FRAMES,
        IS_FP8=key_scales is not None, num_warps=1 if key_scales is not None else 2, **pdl_options(queries),
    )  # fmt: skip
    if n_splits > 1:
        _combine_splits[n_heads, n_rows](
            partial_sums, partial_logsumexps, newest, out, HEADS=n_heads, HEAD_DIM=head_dim, SPLITS=n_splits,
            PADDED=triton.next_power_of_2(n_splits), num_warps=1, **pdl_options(queries),
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
    scores = torch.einsum("rhd,rhtd->rht", queries.float(), k) * queries.shape[-1] ** -0.5
    return torch.einsum("rht,rhtd->rhd", scores.softmax(-1), v).to(queries.dtype)
