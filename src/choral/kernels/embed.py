"""The start of a decoder step: token and position embeddings of each row, and which rows are active."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import has_kernels, require


@triton.jit
def _embed(
    next_tokens, lengths, is_done, row_slots, embedding, positions, states, newest,
    STATE: tl.constexpr, PADDED: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(row_slots + row)
    token, length, done = tl.load(next_tokens + slot), tl.load(lengths + slot), tl.load(is_done + slot)
    position = tl.minimum(tl.maximum(length - 1, 0), POSITIONS - 1)  # may be past the end once the row is done
    tl.store(newest + row, tl.where(done != 0, -1, position).to(newest.dtype.element_ty))
    columns = tl.arange(0, PADDED)
    is_column = columns < STATE
    token_state = tl.load(embedding + token.to(tl.int64) * STATE + columns, mask=is_column, other=0.0).to(tl.float32)
    position_state = tl.load(positions + position * STATE + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(states + row * STATE + columns, (token_state + position_state).to(states.dtype.element_ty), mask=is_column)


def embed(
    next_tokens: Tensor,  # [slots]
    lengths: Tensor,  # [slots], next token included
    is_done: Tensor,  # [slots]
    row_slots: Tensor,  # [rows]
    embedding: Tensor,  # [tokens, state]
    positions: Tensor,  # [positions, state]
) -> tuple[Tensor, Tensor]:
    """The states [rows, state], and the position of each row's newest token; -1: the row is done."""
    if not has_kernels(embedding):
        return reference(next_tokens, lengths, is_done, row_slots, embedding, positions)
    n_rows, n_state = len(row_slots), embedding.shape[1]
    require(embedding.is_contiguous() and positions.is_contiguous(), "contiguous embeddings")
    states = torch.empty(n_rows, n_state, dtype=embedding.dtype, device=embedding.device)
    newest = torch.empty(n_rows, dtype=torch.int32, device=embedding.device)
    padded = triton.next_power_of_2(n_state)
    _embed[(n_rows,)](
        next_tokens, lengths, is_done, row_slots, embedding, positions, states, newest,
        STATE=n_state, PADDED=padded, POSITIONS=len(positions), num_warps=max(1, min(4, padded // 256)),
    )  # fmt: skip
    return states, newest


def reference(
    next_tokens: Tensor, lengths: Tensor, is_done: Tensor, row_slots: Tensor, embedding: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    slots = row_slots.long()
    newest = (lengths[slots] - 1).clamp(0, len(positions) - 1)
    states = embedding[next_tokens[slots]] + positions[newest]
    return states, newest.masked_fill(is_done[slots] != 0, -1).int()
