"""The start of a decoder pass: embeddings of each row's newest tokens, and their positions.

The newest token of a row is followed by its drafted tokens, if the pass verifies some; a draft model that starts again
after a verification takes the token before the newest too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.decode_state import DecodeState
from choral.kernels.launch import has_kernels, require


@triton.jit
def _embed(
    next_tokens, lengths, is_done, recent, prompt_ends, drafts, row_slots, embedding, positions, states, newest,
    n_slots,
    TOKENS: tl.constexpr, FIRST: tl.constexpr, STATE: tl.constexpr, PADDED: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    token_row = tl.program_id(0)
    offset = token_row % TOKENS + FIRST  # 0: the newest token
    slot = tl.load(row_slots + token_row // TOKENS)
    token, length, done = tl.load(next_tokens + slot), tl.load(lengths + slot), tl.load(is_done + slot)
    if offset < 0:
        n_sampled = tl.load(recent + 3 * n_slots + slot)
        token = tl.where(n_sampled < 2, tl.load(prompt_ends + slot), tl.load(recent + n_slots + slot))
    if offset > 0:
        token = tl.load(drafts + (offset - 1) * n_slots + slot)
    position = length - 1 + offset
    is_skipped = (done != 0) | (position >= POSITIONS)
    position = tl.minimum(tl.maximum(position, 0), POSITIONS - 1)
    tl.store(newest + token_row, tl.where(is_skipped, -1, position).to(newest.dtype.element_ty))
    columns = tl.arange(0, PADDED)
    is_column = columns < STATE
    token_state = tl.load(embedding + token.to(tl.int64) * STATE + columns, mask=is_column, other=0.0).to(tl.float32)
    position_state = tl.load(positions + position * STATE + columns, mask=is_column, other=0.0).to(tl.float32)
    target = states + token_row.to(tl.int64) * STATE + columns
    tl.store(target, (token_state + position_state).to(states.dtype.element_ty), mask=is_column)


def embed(
    state: DecodeState,
    row_slots: Tensor,  # [rows]
    embedding: Tensor,  # [tokens, state]
    positions: Tensor,  # [positions, state]
    *,
    n_drafted: int = 0,
    with_previous: bool = False,
) -> tuple[Tensor, Tensor]:
    """The states [rows * tokens, state] and positions [rows * tokens] of each row's tokens; -1: there is none.

    A row has its newest token, with the one before it if `with_previous`, and then `n_drafted` drafted ones.
    """
    first, n_tokens = (-1 if with_previous else 0), n_drafted + 1 + with_previous
    if not has_kernels(embedding):
        return reference(state, row_slots, embedding, positions, range(first, first + n_tokens))
    n_rows, n_state = len(row_slots), embedding.shape[1]
    require(embedding.is_contiguous() and positions.is_contiguous(), "contiguous embeddings")
    require(state.drafts.is_contiguous() and n_drafted <= len(state.drafts), "drafts of all slots")
    states = torch.empty(n_rows * n_tokens, n_state, dtype=embedding.dtype, device=embedding.device)
    newest = torch.empty(n_rows * n_tokens, dtype=torch.int32, device=embedding.device)
    padded = triton.next_power_of_2(n_state)
    _embed[(n_rows * n_tokens,)](
        state.next_tokens, state.lengths, state.is_done, state.recent, state.prompt_ends, state.drafts, row_slots,
        embedding, positions, states, newest, state.drafts.shape[1], TOKENS=n_tokens, FIRST=first,
        STATE=n_state, PADDED=padded, POSITIONS=len(positions), num_warps=max(1, min(4, padded // 256)),
    )  # fmt: skip
    return states, newest


def reference(
    state: DecodeState, row_slots: Tensor, embedding: Tensor, positions: Tensor, offsets: range
) -> tuple[Tensor, Tensor]:
    slots = row_slots.long()
    _, previous, _, n_sampled = state.recent[:, slots]
    previous = torch.where(n_sampled < 2, state.prompt_ends[slots], previous)
    known = {-1: previous, 0: state.next_tokens[slots]}
    tokens = torch.stack([known.get(each, state.drafts[each - 1, slots]) for each in offsets], 1)  # [rows, tokens]
    newest = (state.lengths[slots] - 1)[:, None] + torch.tensor(offsets, device=slots.device)
    is_skipped = (state.is_done[slots] != 0)[:, None] | (newest >= len(positions))
    newest = newest.clamp(0, len(positions) - 1)
    states = embedding[tokens] + positions[newest]
    return states.flatten(0, 1), newest.masked_fill(is_skipped, -1).int().flatten()
