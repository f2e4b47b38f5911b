"""The kernel for linear layers of one or two rows against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from choral.kernels.gemv import NormLinear, add_linear, norm_linear

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SHAPES = [(64, 96), (384, 50), (1280, 40), (5120, 10)]


def relative_error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def layer_of(n_in: int, n_out: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    weight = (torch.randn(n_out, n_in, device=device) * n_in**-0.5).to(dtype)
    return weight, torch.randn(n_out, device=device).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
@pytest.mark.parametrize(("gelu", "has_bias"), [(False, True), (True, True), (False, False)])
def test_norm_linear_matches_the_reference(
    n_in: int, n_out: int, gelu: bool, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = (torch.randn(3, n_in, device=device) + 0.5).to(dtype)
    weight, bias = layer_of(n_in, n_out, dtype, device)
    gain, shift = (torch.randn(n_in, device=device).to(dtype) for _ in range(2))
    normed = F.layer_norm(x.double(), [n_in], gain.double(), shift.double())
    exact = F.linear(normed, weight.double(), bias.double() if has_bias else None)
    layer = NormLinear.of(gain, shift, weight, bias if has_bias else None)
    result = norm_linear(x, layer, gelu=gelu)
    assert result.dtype == dtype
    assert relative_error(result, F.gelu(exact) if gelu else exact) < TOLERANCES[dtype]


def test_results_can_have_another_dtype(device: torch.device) -> None:
    x = torch.randn(1, 64, device=device).bfloat16()
    weight, _ = layer_of(64, 100, torch.bfloat16, device)
    gain, shift = torch.ones(64, device=device), torch.zeros(64, device=device)
    result = norm_linear(x, NormLinear.of(gain, shift, weight, None), dtype=torch.float32)
    assert relative_error(result, F.linear(F.layer_norm(x.double(), [64]), weight.double())) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_add_linear_matches_the_reference(n_in: int, n_out: int, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, n_in, device=device).to(dtype)
    weight, bias = layer_of(n_in, n_out, dtype, device)
    total = torch.randn(3, n_out, device=device).to(dtype)
    exact = total.double() + F.linear(x.double(), weight.double(), bias.double())
    assert add_linear(x, weight, bias, total) is total
    assert relative_error(total, exact) < TOLERANCES[dtype]
