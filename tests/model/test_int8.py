"""The int8 layers: precision, independence of the batch, and behaviour with zeros, extreme values and NaN."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.model import int8
from choral.model.int8 import Bf16Linear, Int8Linear, Int8Unembedding, quantize
from choral.model.weights import open_checkpoint
from choral.model.whisper import Whisper

pytestmark = pytest.mark.skipif(
    not int8.has_vnni(), reason="this CPU has no instructions for int8, which is refused here"
)
# Shapes of tiny and base, and one that fits no block of any kernel.
SHAPES = [(384, 384), (384, 1536), (1536, 384), (512, 2048), (70, 33)]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def tiny_en(tiny_en_pt: Path) -> Whisper:
    return Whisper.from_checkpoint(open_checkpoint(tiny_en_pt), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def quantized(tiny_en: Whisper) -> Whisper:
    network = copy.deepcopy(tiny_en)
    quantize(network)
    return network


def linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out).requires_grad_(False)


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def speechlike_mel(n_windows: int) -> Tensor:
    """Features that change slowly, in the range of log-mel spectrograms."""
    noise = F.avg_pool2d(torch.randn(n_windows, 1, 84, 3004), 5, stride=1)[:, 0]
    return (noise * 2).clamp(-1, 1.5)


@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_int8_linear_is_close_to_float32(n_in: int, n_out: int) -> None:
    plain, x = linear(n_in, n_out), torch.randn(3, 50, n_in)
    result = Int8Linear.of(plain)(x)
    assert result.shape == (3, 50, n_out)
    assert result.dtype == torch.float32
    # Half a level of 127 on either side, spread evenly, for rows whose largest value is 4 times the usual one.
    assert relative_error(result, plain(x)) < 0.015


def test_fused_layers_are_concatenated() -> None:
    first, second = linear(384, 384), nn.Linear(384, 128, bias=False)
    x = torch.randn(20, 384)
    both = Int8Linear.of(first, second)(x)
    assert torch.equal(both[:, :384], Int8Linear.of(first)(x))
    assert torch.equal(both[:, 384:], Int8Linear(second.weight)(x))


def test_transposed_weights_give_the_same_result() -> None:
    weight, x = torch.randn(384, 512), torch.randn(9, 512)
    transposed = weight.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert torch.equal(Int8Linear(transposed)(x), Int8Linear(weight)(x))


@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_row_does_not_depend_on_the_batch(n_in: int, n_out: int) -> None:
    layer, x = Int8Linear.of(linear(n_in, n_out)), torch.randn(700, n_in)
    together = layer(x)
    for n_rows in (1, 2, 3, 5, 8, 13, 16, 33, 500):
        assert torch.equal(layer(x[:n_rows]), together[:n_rows])
    assert torch.equal(layer(x[321:322]), together[321:322])


def test_row_of_zeros_gives_the_bias() -> None:
    plain = linear(384, 384)
    x = torch.randn(3, 384)
    x[1] = 0
    assert torch.equal(Int8Linear.of(plain)(x)[1], plain.bias)


def test_zero_weights_give_the_bias() -> None:
    plain = linear(384, 384)
    plain.weight[5] = 0
    assert torch.equal(Int8Linear.of(plain)(torch.randn(3, 384))[:, 5], plain.bias[5].expand(3))


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_very_small_and_large_rows_keep_their_precision(size: float) -> None:
    plain, x = nn.Linear(384, 384, bias=False), torch.randn(3, 384)
    x[1] *= size
    assert relative_error(Int8Linear(plain.weight)(x)[1], plain(x)[1]) < 0.015


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_stay_in_their_row(strange: float) -> None:
    layer, x = Int8Linear.of(linear(384, 384)), torch.randn(5, 384)
    expected = layer(x)
    x[2, 17] = strange
    result = layer(x)
    assert result[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(result[others], expected[others])


def test_unembedding_is_balanced() -> None:
    """Outlier columns, as in Whisper's embedding, make a plain int8 product imprecise, but not the balanced one."""
    embedding, states = torch.randn(1000, 384) * 0.01, torch.randn(16, 384)
    embedding[:, 7] *= 30
    expected = states @ embedding.t()
    plain = relative_error(Int8Linear(embedding)(states), expected)
    assert relative_error(Int8Unembedding(embedding)(states), expected) < 0.5 * plain
    assert torch.equal(Int8Unembedding(embedding)(states[:3]), Int8Unembedding(embedding)(states)[:3])


def test_int8_encoder_is_close_to_float32(tiny_en: Whisper, quantized: Whisper) -> None:
    mel = speechlike_mel(1)
    features = quantized.encoder(mel.to(quantized.encoder.conv1.weight.dtype))
    assert features.dtype == torch.float32
    assert relative_error(features, tiny_en.encoder(mel)) < 0.05


def test_encoder_window_does_not_depend_on_the_batch(quantized: Whisper) -> None:
    mel = speechlike_mel(3).to(quantized.encoder.conv1.weight.dtype)
    together = quantized.encoder(mel)
    for index in range(3):
        assert torch.equal(quantized.encoder(mel[index : index + 1])[0], together[index])


def test_nan_in_one_window_does_not_spread(quantized: Whisper) -> None:
    mel = speechlike_mel(2).to(quantized.encoder.conv1.weight.dtype)
    expected = quantized.encoder(mel)
    mel[0, 3, 100] = float("nan")
    result = quantized.encoder(mel)
    assert result[0].isnan().any()
    assert torch.equal(result[1], expected[1])


def test_quantize_leaves_the_original_network_unchanged(tiny_en: Whisper, quantized: Whisper) -> None:
    assert isinstance(quantized.encoder.blocks[0].mlp, int8.Int8MLP)
    assert tiny_en.encoder.conv1.weight.dtype == torch.float32
    assert type(tiny_en.decoder.blocks[0].attn.query) is nn.Linear
    in_decoder = Bf16Linear if int8.has_native_bf16() else nn.Linear
    block = quantized.decoder.blocks[-1]
    assert {type(layer) for layer in (block.attn.key, block.cross_attn.out, block.mlp[0], block.mlp[2])} == {in_decoder}


def test_int8_decoder_layers_are_close_to_float32(tiny_en: Whisper, quantized: Whisper) -> None:
    states = torch.randn(4, 384)
    for plain, swapped in zip(tiny_en.decoder.blocks, quantized.decoder.blocks, strict=True):
        assert relative_error(swapped.mlp(states), plain.mlp(states)) < 0.02
        assert relative_error(swapped.cross_attn.query(states), plain.cross_attn.query(states)) < 0.02
    logits = quantized.decoder.unembedding(states)
    assert relative_error(logits, F.linear(states, tiny_en.decoder.token_embedding.weight)) < 0.02
