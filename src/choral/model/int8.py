"""Compute type int8 for CPUs: `quantize` replaces layers of the plain network.

The large products of the encoder and the unembedding are int8: weights are rounded once, with a scale for each output,
and activations at every call, with a scale for each row. Sums are integers, so a row gives the same bits alone or in a
batch, and NaNs stay in their row. The values and outputs of attention and the decoder's layers would gain little speed
and lose the most precision in int8: they are bfloat16 where the CPU multiplies it natively, and float32 elsewhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.model.cpu_attention import int8_attention
from choral.model.whisper import MLP, Attention, Whisper

LEVELS = 127
# oneDNN multiplies unsigned by signed bytes: activations are shifted by this, and it subtracts the contribution again.
ZERO_POINT = 128
MIN_AMAX = 1e-30  # lower bound of a row's largest magnitude, so that rows of zeros are not divided by zero
MLP_ROWS = 500  # rows that pass through an MLP together: its intermediate results then stay in the CPU cache


def has_vnni() -> bool:
    """Whether this CPU accumulates int8 products in one instruction; without it int8 is slow and less exact."""
    return torch.cpu._is_vnni_supported()


def has_native_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported()


def quantize(network: Whisper) -> None:
    """Replace layers of a float32 network on the CPU. The encoder then takes the dtype of `conv1.weight`."""
    encoder, decoder = network.encoder, network.decoder
    for block in encoder.blocks:
        block.attn, block.mlp = Int8Attention(block.attn), Int8MLP(block.mlp)
    decoder.unembedding = Int8Unembedding(decoder.token_embedding.weight)
    if has_native_bf16():
        encoder.conv1.bfloat16()
        encoder.conv2.bfloat16()
        for parent in [module for module in decoder.modules() if isinstance(module, Attention | MLP)]:
            _to_bf16(parent)


def _to_bf16(parent: nn.Module) -> None:
    for name, child in parent.named_children():
        if isinstance(child, nn.Linear):
            setattr(parent, name, Bf16Linear(child))


class Bf16Linear(nn.Module):
    """Multiplies in bfloat16; input and output are float32, so that residual sums and norms keep their precision.

    The weights are packed once: otherwise oneDNN packs them at every call, which for few rows is most of the time.
    """

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features = plain.in_features
        # A checkpoint may store its weights transposed, and the packing ignores strides.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.bfloat16().contiguous())
        self.bias = None if plain.bias is None else plain.bias.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.bfloat16().view(-1, self.in_features)
        if len(rows) == 1:  # a matrix-vector product rounds differently: a row's result must not depend on the batch
            rows = rows.expand(2, -1)
        product = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "").float()
        result: Tensor = product[: x.numel() // self.in_features].view(*x.shape[:-1], -1)
        return result


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as uint8 around the zero point [n, in], and the largest magnitude of each row [n, 1]."""
    largest = torch.maximum(rows.amax(-1, keepdim=True), rows.amin(-1, keepdim=True).neg_()).clamp_(min=MIN_AMAX)
    levels = (rows * (LEVELS / largest)).round_().to(torch.int8)
    return levels.bitwise_xor_(-ZERO_POINT).view(torch.uint8), largest


class Int8Linear(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:  # [out, in], [out]
        super().__init__()
        largest = weight.abs().amax(1).clamp_(min=MIN_AMAX)
        levels = (weight * (LEVELS / largest)[:, None]).round_().to(torch.int8)
        # A checkpoint may store its weights transposed, and the packing ignores strides.
        self.packed = torch.ops.onednn.qlinear_prepack(levels.contiguous(), None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self.scale = largest / LEVELS**2  # of weight and activation
        self.bias = bias

    @classmethod
    def of(cls, *layers: nn.Module) -> Int8Linear:
        """Fuse layers that share their input; their outputs are concatenated."""
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        for layer in layers:
            assert isinstance(layer, nn.Linear)
            weights.append(layer.weight)
            biases.append(layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias)
        return cls(torch.cat(weights), torch.cat(biases))

    def forward(self, x: Tensor) -> Tensor:  # [..., in] → [..., out]
        levels, largest = quantize_rows(x.reshape(-1, x.shape[-1]))
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, ZERO_POINT, self.packed, self.scale, self.zero_points, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        result.mul_(largest)
        if self.bias is not None:
            result.add_(self.bias)
        return result.view(*x.shape[:-1], -1)


class Int8Unembedding(Int8Linear):
    """The product with the token embedding, some of whose columns are a hundred times larger than others.

    The square root of that range is moved to the states, so that neither side loses much to rounding.
    """

    def __init__(self, embedding: Tensor) -> None:  # [vocabulary, state]
        balance = embedding.abs().amax(0).clamp_(min=MIN_AMAX).sqrt()
        super().__init__(embedding / balance)
        self.balance = balance

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states * self.balance)


class Int8Attention(Attention):
    """The encoder's self-attention."""

    def __init__(self, plain: Attention) -> None:
        nn.Module.__init__(self)
        self.n_head = plain.n_head
        self.queries_keys = Int8Linear.of(plain.query, plain.key)
        self.is_bf16 = has_native_bf16()
        self.value, self.out = plain.value, plain.out
        if self.is_bf16:
            _to_bf16(self)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = self.queries_keys(x).chunk(2, dim=-1)
        q, k, v = (self.split_heads(part) for part in (queries, keys, self.value(x)))
        return self.merge_heads((int8_attention if self.is_bf16 else F.scaled_dot_product_attention)(q, k, v))


class Int8MLP(MLP):
    def __init__(self, plain: MLP) -> None:
        nn.Module.__init__(self)
        self.wide, self.narrow = Int8Linear.of(plain[0]), Int8Linear.of(plain[2])

    def forward(self, x: Tensor) -> Tensor:
        blocks = torch.split(x.reshape(-1, x.shape[-1]), MLP_ROWS)
        return torch.cat([self.narrow(F.gelu(self.wide(block))) for block in blocks]).view(x.shape)
