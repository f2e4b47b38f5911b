"""The encoder's int8 attention against torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from choral.model import int8
from choral.model.cpu_attention import QUERY_BLOCK, int8_attention

pytestmark = pytest.mark.skipif(not int8.has_native_bf16(), reason="this CPU does not multiply bfloat16")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def test_int8_attention_is_close_to_attention() -> None:
    q, k, v = (torch.randn(2, 6, 1500, 64) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v)
    result = int8_attention(q, k, v)
    assert result.shape == expected.shape
    # Weights that are 3% off where none stands out, so that 1,500 random values average to almost nothing.
    assert relative_error(result, expected) < 0.04
    assert torch.equal(int8_attention(*(x[1:] for x in (q, k, v)))[0], result[1])


@pytest.mark.parametrize("n_frames", [1, 7, QUERY_BLOCK - 1, QUERY_BLOCK + 1])
def test_int8_attention_of_any_length(n_frames: int) -> None:
    q, k, v = (torch.randn(1, 2, n_frames, 64) for _ in range(3))
    assert relative_error(int8_attention(q, k, v), F.scaled_dot_product_attention(q, k, v)) < 0.04


def test_int8_attention_to_one_key_gives_its_value() -> None:
    """With very large scores, each query attends only to its own key."""
    q = torch.randn(1, 1, 600, 64) * 8
    v = torch.randn(1, 1, 600, 64)
    assert relative_error(int8_attention(q, q, v), v) < 0.01


def test_int8_attention_to_equal_keys_gives_the_mean() -> None:
    v = torch.randn(1, 2, 300, 64)
    for size in (0.0, 1.0, 1e20):
        q, k = torch.randn(1, 2, 300, 64), torch.full((1, 2, 300, 64), size)
        expected = v.mean(2, keepdim=True).expand_as(v)
        assert (int8_attention(q, k, v) - expected).abs().max() < 0.01
