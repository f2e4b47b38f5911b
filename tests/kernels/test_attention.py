"""The attention kernels and `write_cross_kv` against torch, over shapes, finished rows, and slots in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from choral.kernels import write_kv
from choral.kernels.cross_attention import cross_attention, splits_for
from choral.kernels.cross_attention import reference as cross_reference
from choral.kernels.fp8 import FP8
from choral.kernels.self_attention import reference as self_reference
from choral.kernels.self_attention import self_attention
from choral.kernels.write_kv import write_cross_kv

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
PRODUCTS = (torch.float32, torch.float16)  # the interpreter multiplies no bfloat16 matrices


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("dtype", PRODUCTS)
@pytest.mark.parametrize("n_tokens", [1, 3, 20])
@pytest.mark.parametrize(
    ("n_rows", "n_heads", "n_frames", "head_dim"), [(1, 2, 1500, 64), (5, 2, 100, 32), (2, 1, 6, 16)]
)
def test_cross_attention_matches_the_reference(
    dtype: torch.dtype, n_tokens: int, n_rows: int, n_heads: int, n_frames: int, head_dim: int, device: torch.device
) -> None:
    queries = torch.randn(n_rows * n_tokens, n_heads, head_dim, device=device).to(dtype) * 2
    keys, values = (torch.randn(9, n_heads, n_frames, head_dim, device=device).to(dtype) for _ in range(2))
    newest = torch.zeros(n_rows * n_tokens, dtype=torch.int32, device=device)
    audio = torch.randint(0, 9, (n_rows,), device=device).int()
    attended = cross_attention(queries, keys, values, audio, newest)
    expected = cross_reference(queries.float(), keys.float(), values.float(), audio)
    assert relative_error(attended, expected) < TOLERANCES[dtype]


def test_few_rows_are_split_and_many_are_not() -> None:
    assert splits_for(20, 1500, 128) == 12
    assert splits_for(64 * 20, 1500, 128) == 1
    assert splits_for(2, 6, 128) == 1  # there is only one block


def test_rows_that_are_done_are_skipped(device: torch.device) -> None:
    keys, values = (torch.randn(3, 2, 20, 16, device=device) for _ in range(2))
    slots = torch.tensor([0, 1, 2], device=device).int()
    qkv = torch.randn(3, 96, device=device)
    newest = torch.tensor([0, -1, 0], device=device).int()
    untouched = keys[1].clone()
    self_attention(qkv, keys, values, slots, newest)
    assert torch.equal(keys[1], untouched)
    assert not torch.equal(keys[0][:, 0], untouched[:, 0])


def test_cross_attention_with_fp8_keys_and_values(device: torch.device) -> None:
    projected = torch.randn(2, 150, 2 * 3 * 32, device=device)
    projected[0, :, :32] *= 100  # one head of one window only
    keys, values = (torch.empty(4, 3, 150, 32, device=device, dtype=FP8) for _ in range(2))
    key_scales, value_scales = (torch.ones(4, 3, device=device) for _ in range(2))
    slots = torch.tensor([2, 0], device=device).int()
    write_cross_kv(projected, keys, values, slots, key_scales, value_scales)
    expected = [torch.empty_like(each) for each in (keys, values, key_scales, value_scales)]
    expected[2].fill_(1), expected[3].fill_(1)
    write_kv.reference(projected, expected[0], expected[1], slots, expected[2], expected[3])
    assert torch.allclose(key_scales, expected[2])
    for result, reference in ((keys, expected[0]), (values, expected[1])):
        # The interpreter cuts where a GPU, like torch, rounds: one step of the last bit.
        assert relative_error(result[slots.long()], reference[slots.long()]) < (1e-3 if device.type == "cuda" else 0.08)

    queries = torch.randn(2, 3, 32, device=device)
    newest = torch.zeros(2, dtype=torch.int32, device=device)
    attended = cross_attention(queries, keys, values, slots, newest, key_scales, value_scales)
    reference = cross_reference(queries, keys, values, slots, key_scales, value_scales)
    assert relative_error(attended, reference) < TOLERANCES[torch.float16]  # its products are in float16
    exact = [torch.empty(4, 3, 150, 32, device=device) for _ in range(2)]
    write_kv.reference(projected, exact[0], exact[1], slots)
    assert relative_error(attended[1:], cross_reference(queries, exact[0], exact[1], slots)[1:]) < 0.15


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_write_cross_kv_matches_the_reference(dtype: torch.dtype, device: torch.device) -> None:
    projected = torch.randn(3, 100, 2 * 2 * 16, device=device).to(dtype)
    caches = [torch.zeros(5, 2, 100, 16, device=device, dtype=dtype) for _ in range(4)]
    slots = torch.tensor([4, 1, 2], device=device).int()
    write_cross_kv(projected, caches[0], caches[1], slots)
    write_kv.reference(projected, caches[2], caches[3], slots)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    assert caches[0][4].any()
    assert not caches[0][0].any()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_self_attention_matches_the_reference(dtype: torch.dtype, device: torch.device) -> None:
    n_slots, n_heads, n_positions, head_dim = 7, 3, 80, 32
    qkv = torch.randn(4, 3 * n_heads * head_dim, device=device).to(dtype)
    caches = [torch.randn(n_slots, n_heads, n_positions, head_dim, device=device).to(dtype) for _ in range(2)]
    copies = [cache.clone() for cache in caches]
    slots = torch.tensor([5, 0, 3, 6], device=device).int()
    newest = torch.tensor([79, 32, 0, 31], device=device).int()
    attended = self_attention(qkv, caches[0], caches[1], slots, newest)
    expected = self_reference(qkv.float(), copies[0], copies[1], slots, newest)
    assert relative_error(attended, expected) < TOLERANCES[dtype]
    assert torch.equal(caches[0], copies[0])
    assert torch.equal(caches[1], copies[1])


def test_wrong_shapes_are_refused(device: torch.device) -> None:
    keys = torch.zeros(2, 2, 16, 20, device=device).transpose(2, 3)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="contiguous"):
        cross_attention(torch.zeros(1, 2, 16, device=device), keys, keys, slots, slots)
    with pytest.raises(ValueError, match="contiguous"):
        self_attention(torch.zeros(1, 95, device=device), keys, keys, slots, slots)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_several_new_tokens_attend_as_if_they_came_one_by_one(dtype: torch.dtype, device: torch.device) -> None:
    n_rows, n_tokens, n_heads, head_dim, n_positions = 2, 5, 2, 32, 80
    keys, values = (torch.randn(4, n_heads, n_positions, head_dim, device=device).to(dtype) for _ in range(2))
    qkv = torch.randn(n_rows, n_tokens, 3 * n_heads * head_dim, device=device).to(dtype)
    slots = torch.tensor([3, 1], device=device).int()
    newest = (torch.tensor([[30], [0]], device=device) + torch.arange(n_tokens, device=device)).int()
    newest[1, 3:] = -1  # the second row has three tokens
    together = keys.clone(), values.clone()
    attended = self_attention(qkv.flatten(0, 1), *together, slots, newest.flatten()).unflatten(0, (n_rows, n_tokens))
    for token in range(n_tokens):
        alone = self_attention(qkv[:, token].contiguous(), keys, values, slots, newest[:, token].contiguous())
        n_active = 1 if token >= 3 else 2
        assert torch.equal(alone[:n_active], attended[:n_active, token])
    assert torch.equal(together[0], keys)
    assert torch.equal(together[1], values)
