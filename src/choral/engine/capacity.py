"""Capacity: how many decoder slots and how large an encoder cache fit into a device's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from choral.model.dims import ModelDims

MIN_SLOTS = 8  # a beam search of the usual size fits, however little memory is free
SLOTS_SHARE, CACHE_SHARE = 0.25, 0.05  # of the free memory
MAX_CACHE_BYTES = 1 << 30
ASSUMED_FREE_BYTES = 16 << 30  # if the system does not report it


@dataclass(frozen=True)
class Capacity:
    """What a runner has room for; measured when it starts."""

    n_slots: int
    slot_bytes: int
    features_bytes: int  # of one encoder result
    cache_bytes: int  # of the encoder cache
    n_lanes: int = 1  # windows that encode together in little more time than one
    is_micro_batch: bool = False  # a decode call runs its windows to their end, and none can join it


def plan_capacity(
    free_bytes: int,
    dims: ModelDims,
    item_bytes: int,
    *,
    n_slots: int,
    max_slots: int,
    slots_share: float = SLOTS_SHARE,
    cross_item_bytes: int | None = None,
    draft_dims: ModelDims | None = None,
) -> Capacity:
    """Divide free memory between slots and encoder cache.

    `item_bytes` is the size of one number, `cross_item_bytes` that of the cross-attention K/V where it differs.
    `n_slots` of 0 means as many as fit. A draft model has K/V in the same slots, and may have features of its own.
    """
    models = [dims, *([draft_dims] if draft_dims else [])]
    position_bytes = dims.n_audio_ctx * (cross_item_bytes or item_bytes) + dims.n_text_ctx * item_bytes
    slot_bytes = sum(each.n_text_layer * 2 * each.n_text_state for each in models) * position_bytes
    return Capacity(
        n_slots=n_slots or max(MIN_SLOTS, min(max_slots, int(free_bytes * slots_share) // slot_bytes)),
        slot_bytes=slot_bytes,
        features_bytes=sum(each.n_audio_ctx * each.n_audio_state for each in models) * item_bytes,
        cache_bytes=min(MAX_CACHE_BYTES, int(free_bytes * CACHE_SHARE)),
    )


def free_memory() -> int:
    if not hasattr(os, "sysconf"):
        return ASSUMED_FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
