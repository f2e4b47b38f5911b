"""How much memory is free, and how it is divided between slots and encoder cache. Plain Python."""

from __future__ import annotations

import os

from choral.engine.runner import Capacity
from choral.model.dims import ModelDims

FEWEST_SLOTS = 8  # a beam search of the usual size fits, whatever the memory
SLOTS_SHARE, CACHE_SHARE = 0.25, 0.05  # of the memory that is free
MOST_CACHE_BYTES = 1 << 30
UNKNOWN_MEMORY = 16 << 30  # where the system does not tell


def plan_capacity(
    free_bytes: int,
    dims: ModelDims,
    item_bytes: int,
    *,
    n_slots: int,
    most_slots: int,
    slots_share: float = SLOTS_SHARE,
    heard_item_bytes: int | None = None,
) -> Capacity:
    """`item_bytes` is the size of one number, where another is not given for what was heard.

    `n_slots` of 0 means as many as there is room for.
    """
    position_bytes = dims.n_audio_ctx * (heard_item_bytes or item_bytes) + dims.n_text_ctx * item_bytes
    slot_bytes = dims.n_text_layer * 2 * dims.n_text_state * position_bytes
    return Capacity(
        n_slots=n_slots or max(FEWEST_SLOTS, min(most_slots, int(free_bytes * slots_share) // slot_bytes)),
        slot_bytes=slot_bytes,
        features_bytes=dims.n_audio_ctx * dims.n_audio_state * item_bytes,
        cache_bytes=min(MOST_CACHE_BYTES, int(free_bytes * CACHE_SHARE)),
    )


def free_memory() -> int:
    if not hasattr(os, "sysconf"):
        return UNKNOWN_MEMORY
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
