"""The embedding kernel against torch."""

from __future__ import annotations

import pytest
import torch

from choral.kernels import embed as module
from choral.kernels.embed import embed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_state", [64, 1280])
def test_embeddings_and_positions_of_active_and_done_rows(
    n_state: int, dtype: torch.dtype, device: torch.device
) -> None:
    embedding = torch.randn(100, n_state, device=device).to(dtype)
    positions = torch.randn(20, n_state, device=device).to(dtype)
    next_tokens = torch.tensor([5, 99, 0, 7, 3], device=device)
    lengths = torch.tensor([1, 20, 6, 21, 4], device=device)
    is_done = torch.tensor([0, 0, 0, 1, 1], device=device)
    slots = torch.tensor([2, 0, 3, 1, 4], device=device).int()
    state = next_tokens, lengths, is_done, slots, embedding, positions
    states, newest = embed(*state)
    assert newest.tolist() == [5, 0, -1, 19, -1]
    tolerance = 0 if dtype == torch.float32 else 2**-7  # the interpreter cuts where a GPU, like torch, rounds
    assert torch.allclose(states[0], embedding[0] + positions[5], rtol=tolerance, atol=0)
    assert torch.allclose(states[3], embedding[99] + positions[19], rtol=tolerance, atol=0)
    expected_states, expected_newest = module.reference(*state)
    assert torch.allclose(states, expected_states, rtol=tolerance, atol=0)
    assert torch.equal(newest, expected_newest)
