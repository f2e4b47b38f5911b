"""The embedding kernel against torch: newest tokens, drafted ones behind them, and the one before."""

from __future__ import annotations

import pytest
import torch

from choral.engine.gpu_state import LENGTH, N_FLOATS, N_INTS, NEXT, PROMPT_END, RECENT, decode_state
from choral.kernels import embed as module
from choral.kernels.decode_state import DecodeState
from choral.kernels.embed import embed


def state_of(device: torch.device) -> DecodeState:
    ints = torch.zeros(N_INTS, 5, dtype=torch.long, device=device)
    ints[NEXT] = torch.tensor([5, 99, 0, 7, 3])
    ints[LENGTH] = torch.tensor([2, 20, 6, 21, 4])
    ints[PROMPT_END] = torch.tensor([50, 51, 52, 53, 54])
    ints[RECENT + 1] = torch.tensor([-1, 61, 62, 63, 64])
    ints[RECENT + 3] = torch.tensor([1, 2, 9, 9, 9])
    state = decode_state(ints, torch.zeros(N_FLOATS, 5, device=device), 20)
    state.is_done[:] = torch.tensor([0, 0, 0, 1, 1])
    state.drafts[:2] = torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
    return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_state", [64, 1280])
def test_embeddings_and_positions_of_active_and_done_rows(
    n_state: int, dtype: torch.dtype, device: torch.device
) -> None:
    embedding = torch.randn(100, n_state, device=device).to(dtype)
    positions = torch.randn(20, n_state, device=device).to(dtype)
    slots = torch.tensor([2, 0, 3, 1, 4], device=device).int()
    tolerance = 0 if dtype == torch.float32 else 2**-7  # the interpreter cuts where a GPU, like torch, rounds

    def check(n_drafted: int, with_previous: bool, tokens: list[int], places: list[int]) -> None:
        state = state_of(device)
        states, newest = embed(state, slots, embedding, positions, n_drafted=n_drafted, with_previous=with_previous)
        assert newest.tolist() == places
        for row, (token, place) in enumerate(zip(tokens, places, strict=True)):
            expected = embedding[token] + positions[place]
            assert place < 0 or torch.allclose(states[row], expected, rtol=tolerance, atol=0)
        offsets = range(-with_previous, n_drafted + 1)
        expected_states, expected_newest = module.reference(state, slots, embedding, positions, offsets)
        assert torch.allclose(states, expected_states, rtol=tolerance, atol=0)
        assert torch.equal(newest, expected_newest)

    check(0, False, [0, 5, 7, 99, 3], [5, 1, -1, 19, -1])
    drafted = [0, 12, 22, 5, 10, 20, 7, 13, 23, 99, 11, 21, 3, 14, 24]
    check(2, False, drafted, [5, 6, 7, 1, 2, 3, -1, -1, -1, 19, -1, -1, -1, -1, -1])
    check(0, True, [62, 0, 50, 5, 63, 7, 61, 99, 64, 3], [4, 5, 0, 1, -1, -1, 18, 19, -1, -1])
