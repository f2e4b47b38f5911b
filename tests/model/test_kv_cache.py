"""The bfloat16 KV cache: precision, and independence of the batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from choral.model import int8
from choral.model.dims import ModelDims
from choral.model.kv_cache import BatchRows, Bf16KVCache, KVCache, adjacent_groups

needs_bfloat16 = pytest.mark.skipif(not int8.has_native_bf16(), reason="this CPU does not multiply bfloat16")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


@needs_bfloat16
@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize(
    "audio_groups", [[(0, 1)], [(2, 1), (3, 1), (4, 1)], [(0, 1), (2, 3), (5, 3), (6, 3)], [(6, 1), (1, 2)]]
)
def test_bf16_cross_attention_is_close_to_float32(audio_groups: list[tuple[int, int]], n_tokens: int) -> None:
    plain, bf16 = caches()
    n_rows = sum(n for _, n in audio_groups)
    rows = BatchRows.for_decode(list(range(n_rows)), [0] * n_rows, audio_groups, torch.device("cpu"))
    queries = torch.randn(n_rows, 6, n_tokens, 64)
    expected = plain.cross_attention(1, queries, rows)
    assert relative_error(bf16.cross_attention(1, queries, rows), expected) < 0.02


@needs_bfloat16
def test_bf16_cross_attention_does_not_depend_on_the_batch() -> None:
    _, bf16 = caches()
    queries = torch.randn(4, 6, 1, 64)
    together = BatchRows.for_decode([0, 1, 2, 3], [0] * 4, [(1, 1), (2, 1), (3, 1), (6, 1)], torch.device("cpu"))
    attended = bf16.cross_attention(0, queries, together)
    for row, group in enumerate(together.audio_groups):
        alone = BatchRows.for_decode([0], [0], [group], torch.device("cpu"))
        assert torch.equal(bf16.cross_attention(0, queries[row : row + 1], alone)[0], attended[row])


def caches() -> tuple[KVCache, Bf16KVCache]:
    dims = ModelDims(80, 1500, 384, 6, 2, 1000, 16, 384, 6, 2)
    cpu = torch.device("cpu")
    plain, bf16 = KVCache(dims, 8, cpu, torch.float32), Bf16KVCache(dims, 8, cpu, torch.float32, torch.bfloat16)
    for wide, narrow in ((plain.cross_keys, bf16.cross_keys), (plain.cross_values, bf16.cross_values)):
        wide.normal_()
        narrow.copy_(wide)
    return plain, bf16


def test_adjacent_groups() -> None:
    assert list(adjacent_groups([(3, 1), (4, 1), (6, 1), (7, 2), (8, 2), (2, 2)])) == [
        (3, 2, 1),
        (6, 1, 1),
        (7, 2, 2),
        (2, 1, 2),
    ]
