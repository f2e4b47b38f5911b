"""Write projected cross-attention K/V to slots: from [frames, heads] to [heads, frames].

In fp8 each head of a window has its own scale, from its largest magnitude.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.fp8 import FP8_MAX, MIN_AMAX
from choral.kernels.launch import has_kernels, require

BLOCK_FRAMES = 64


@triton.jit
def _write_cross_kv(
    projected, keys, values, key_scales, value_scales, slots,
    HEADS: tl.constexpr, FRAMES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, IS_FP8: tl.constexpr,
    TOP: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    part, window = tl.program_id(0), tl.program_id(1)
    head = part % HEADS
    is_value = part // HEADS
    slot_head = tl.load(slots + window).to(tl.int64) * HEADS + head
    dims = tl.arange(0, HEAD_DIM)
    source = projected + window.to(tl.int64) * (FRAMES * 2 * HEADS * HEAD_DIM) + part * HEAD_DIM
    target = values if is_value else keys
    target += slot_head * (FRAMES * HEAD_DIM)
    scale = 1.0
    if IS_FP8:
        largest = SMALLEST
        for start in range(0, FRAMES, BLOCK):
            frames = start + tl.arange(0, BLOCK)
            offsets = frames[:, None] * (2 * HEADS * HEAD_DIM) + dims[None, :]
            tile = tl.load(source + offsets, mask=(frames < FRAMES)[:, None], other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.max(tl.max(tl.abs(tile), axis=1), axis=0))
        scale = TOP / largest
        scales = value_scales if is_value else key_scales
        tl.store(scales + slot_head, largest / TOP)
    for start in range(0, FRAMES, BLOCK):
        frames = start + tl.arange(0, BLOCK)
        is_frame = (frames < FRAMES)[:, None]
        tile = tl.load(source + frames[:, None] * (2 * HEADS * HEAD_DIM) + dims[None, :], mask=is_frame, other=0.0)
        if IS_FP8:
            tile = tile.to(tl.float32) * scale
        tl.store(target + frames[:, None] * HEAD_DIM + dims[None, :], tile.to(target.dtype.element_ty), mask=is_frame)


def write_cross_kv(
    projected: Tensor,  # [windows, frames, 2 * heads * head_dim]: keys, then values
    keys: Tensor,  # [slots, heads, frames, head_dim]
    values: Tensor,
    slots: Tensor,  # [windows]
    key_scales: Tensor | None = None,  # [slots, heads], with fp8
    value_scales: Tensor | None = None,
) -> None:
    if not has_kernels(projected):
        reference(projected, keys, values, slots, key_scales, value_scales)
        return
    _, n_heads, n_frames, head_dim = keys.shape
    require(projected.is_contiguous() and projected.shape[1:] == (n_frames, 2 * n_heads * head_dim), "keys and values")
    require(keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape, "contiguous K/V")
    _write_cross_kv[2 * n_heads, len(projected)](
        projected, keys, values, key_scales, value_scales, slots, HEADS=n_heads, FRAMES=n_frames, HEAD_DIM=head_dim,
        BLOCK=BLOCK_FRAMES, IS_FP8=key_scales is not None, TOP=FP8_MAX, SMALLEST=MIN_AMAX, num_warps=4,
    )  # fmt: skip


def reference(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    n_windows, n_frames, _ = projected.shape
    parts = projected.view(n_windows, n_frames, 2, keys.shape[1], keys.shape[3]).permute(2, 0, 3, 1, 4)
    for part, target, scales in ((parts[0], keys, key_scales), (parts[1], values, value_scales)):
        scaled = part
        if scales is not None:
            tops = part.float().abs().amax((-1, -2)).clamp(min=MIN_AMAX)
            scales[slots.long()] = tops / FP8_MAX
            scaled = part.float() * (FP8_MAX / tops)[..., None, None]
        target[slots.long()] = scaled.to(target.dtype)
