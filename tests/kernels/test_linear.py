"""Linear layers against torch, for few and many rows, with and without a norm before them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.kernels.linear import LinearLayer, fold_norm, tile_for

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3}  # the interpreter multiplies no bfloat16 matrices
SHAPES = [(64, 96), (384, 48), (1536, 40)]  # the last one has several slices


def relative_error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def layer_of(
    n_in: int, n_out: int, dtype: torch.dtype, device: torch.device, *, is_normed: bool, is_invariant: bool = True
) -> LinearLayer:
    weight = (torch.randn(n_out, n_in, device=device) * n_in**-0.5).to(dtype)
    bias = torch.randn(n_out, device=device).to(dtype)
    return LinearLayer(weight, bias, is_normed=is_normed, is_invariant=is_invariant)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
@pytest.mark.parametrize(("n_rows", "is_invariant"), [(1, True), (3, True), (10, True), (70, True), (2, False)])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rows_match_torch(
    n_in: int, n_out: int, n_rows: int, is_invariant: bool, is_normed: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = (torch.randn(n_rows, n_in, device=device) + 0.5).to(dtype)
    layer = layer_of(n_in, n_out, dtype, device, is_normed=is_normed, is_invariant=is_invariant)
    normed = F.layer_norm(x.double(), [n_in]) if is_normed else x.double()
    exact = F.linear(normed, layer.weight.double(), layer.bias.double())
    result = layer(x, gelu=True)
    assert result.dtype == dtype
    assert relative_error(result, F.gelu(exact)) < TOLERANCES[dtype]
    states = torch.randn(n_rows, n_out, device=device).to(dtype)
    expected = states.double() + exact
    layer.add_to(states, x)
    assert relative_error(states, expected) < TOLERANCES[dtype]


def test_rows_do_not_depend_on_the_number_of_rows(device: torch.device) -> None:
    """In the interpreter the tiles differ, and their sums are numpy's; `choral bench gpu` tests the bits of a GPU."""
    x = torch.randn(70, 1536, device=device).half()
    layer = layer_of(1536, 48, torch.float16, device, is_normed=False)
    together = layer(x)
    for n_rows in (1, 2, 8, 9, 16, 17):
        assert torch.allclose(layer(x[:n_rows].contiguous()), together[:n_rows], rtol=1e-3, atol=1e-3)
    assert len({tile_for(n_rows) for n_rows in (1, 9, 17, 1000)}) == 4


def test_results_can_have_another_dtype(device: torch.device) -> None:
    x = torch.randn(1, 64, device=device).half()
    layer = layer_of(64, 96, torch.float16, device, is_normed=True)
    exact = F.linear(F.layer_norm(x.double(), [64]), layer.weight.double(), layer.bias.double())
    assert relative_error(layer(x, dtype=torch.float32), exact) < 1e-5


def test_a_folded_norm_gives_the_same_function() -> None:
    norm, layers = nn.LayerNorm(64), [nn.Linear(64, 32), nn.Linear(64, 16, bias=False)]
    norm.weight, norm.bias = nn.Parameter(torch.randn(64)), nn.Parameter(torch.randn(64))
    x = torch.randn(5, 64)
    before = [layer(norm(x)) for layer in layers]
    fold_norm(norm, *layers)
    assert torch.equal(norm.weight, torch.ones(64))
    for layer, expected in zip(layers, before, strict=True):
        assert torch.allclose(layer(norm(x)), expected, atol=1e-5)
