"""Linear layers for a handful of rows."""

from __future__ import annotations

import pytest
import torch

from choral.kernels import few_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_in", "n_out"), [(64, 192), (384, 50), (1280, 1280), (5120, 130)])
@pytest.mark.parametrize(
    ("has_norm", "gelu", "is_added"), [(True, False, False), (True, True, False), (False, False, True)]
)
def test_as_the_plain_layers(
    n_in: int,
    n_out: int,
    has_norm: bool,
    gelu: bool,
    is_added: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    x = torch.randn(3, n_in, device=device).to(dtype)
    weight = (torch.randn(n_out, n_in, device=device) * n_in**-0.5).to(dtype)
    bias = torch.randn(n_out, device=device).to(dtype)
    norm = (
        (torch.randn(n_in, device=device).to(dtype), torch.randn(n_in, device=device).to(dtype)) if has_norm else None
    )
    total = torch.randn(3, n_out, device=device).to(dtype)
    exact = few_rows.reference(
        x.double(), weight.double(), bias.double(), gelu=gelu,
        norm=(norm[0].double(), norm[1].double()) if norm else None, added_to=total.double() if is_added else None,
    )  # fmt: skip
    result = few_rows.linear(x, weight, bias, norm=norm, gelu=gelu, added_to=total if is_added else None)
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert float((result.double() - exact).norm() / exact.norm()) < tolerance
    assert not is_added or result is total
