"""The fused add and layer norm against torch."""

from __future__ import annotations

import pytest
import torch

from choral.kernels import norm
from choral.kernels.norm import add_and_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_added", [True, False])
@pytest.mark.parametrize("n_state", [64, 384, 1280])
def test_add_and_norm_matches_the_reference(
    n_state: int, has_added: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = (torch.randn(5, n_state, device=device) * 3 + 1).to(dtype)
    weight, bias, added = (torch.randn(n_state, device=device).to(dtype) for _ in range(3))
    states = x.clone()
    result = add_and_norm(states, added if has_added else None, weight, bias)
    expected = x.float()
    exact = norm.reference(expected, added.float() if has_added else None, weight.float(), bias.float())
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert torch.allclose(states.float(), expected, rtol=tolerance, atol=tolerance)
    assert torch.allclose(result.float(), exact, rtol=tolerance, atol=tolerance)
