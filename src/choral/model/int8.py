"""The fastest way through the network on a CPU, laid over the plain one from outside: `quantize` swaps its layers.

The large products of the encoder and the one with the vocabulary are made of bytes: weights are rounded once, with a
scale for every output, activations at every call, with a scale for every row. Products are summed as whole numbers,
so a row has the same result to the bit alone and among others, and a row that is not a number spoils itself only.
Values, the outputs of attention and the decoder's layers gain little from bytes and lose most by them: those are
bfloat16 where the CPU multiplies it natively, and float32 elsewhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.model import half
from choral.model.fast_attention import attend_fast
from choral.model.half import HalfLinear
from choral.model.layers import MLP, Attention, attend
from choral.model.whisper import Whisper

LEVELS = 127
# oneDNN multiplies unsigned by signed bytes: activations are moved up by this, and it takes the share of it off again.
ZERO_POINT = 128
MIN_AMAX = 1e-30  # keeps a row of zeros from being divided by zero
# Rows that go through a whole MLP before the next ones do, so that what lies between its products stays in the cache.
MLP_ROWS = 500


def is_fast_here() -> bool:
    """Whether this CPU adds up products of bytes in one instruction; without it int8 is slow, and less exact."""
    return torch.cpu._is_vnni_supported()


def quantize(network: Whisper) -> None:
    """Swaps the layers of a float32 network on the CPU. The encoder takes the dtype of `conv1.weight` after this."""
    encoder, decoder = network.encoder, network.decoder
    for block in encoder.blocks:
        block.attn, block.mlp = Int8Attention(block.attn), Int8MLP(block.mlp)
    decoder.unembedding = Int8Unembedding(decoder.token_embedding.weight)
    if half.is_fast_here():
        encoder.conv1.bfloat16()
        encoder.conv2.bfloat16()
        for linears in [module for module in decoder.modules() if isinstance(module, Attention | MLP)]:
            _halve(linears)


def _halve(parent: nn.Module) -> None:
    for name, child in parent.named_children():
        if isinstance(child, nn.Linear):
            setattr(parent, name, HalfLinear(child))


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Fp8Rows around the zero point [n, in], and the largest magnitude of every row [n, 1]."""
    top = torch.maximum(rows.amax(-1, keepdim=True), rows.amin(-1, keepdim=True).neg_()).clamp_(min=MIN_AMAX)
    levels = (rows * (LEVELS / top)).round_().to(torch.int8)
    return levels.bitwise_xor_(-ZERO_POINT).view(torch.uint8), top


class Int8Linear(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:  # [out, in], [out]
        super().__init__()
        top = weight.abs().amax(1).clamp_(min=MIN_AMAX)
        levels = (weight * (LEVELS / top)[:, None]).round_().to(torch.int8)
        # A checkpoint may hold its weights transposed, which the packing would not notice.
        self.packed = torch.ops.onednn.qlinear_prepack(levels.contiguous(), None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self.scale = top / LEVELS**2  # of weight and activation
        self.bias = bias

    @classmethod
    def of(cls, *layers: nn.Module) -> Int8Linear:
        """One for several layers of the same input, their results side by side."""
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        for layer in layers:
            assert isinstance(layer, nn.Linear)
            weights.append(layer.weight)
            biases.append(layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias)
        return cls(torch.cat(weights), torch.cat(biases))

    def forward(self, x: Tensor) -> Tensor:  # [..., in] → [..., out]
        levels, top = quantize_rows(x.reshape(-1, x.shape[-1]))
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, ZERO_POINT, self.packed, self.scale, self.zero_points, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        result.mul_(top)
        if self.bias is not None:
            result.add_(self.bias)
        return result.view(*x.shape[:-1], -1)


class Int8Unembedding(Int8Linear):
    """The product with the token embedding, some of whose columns are up to a hundred times larger than others.

    Half of that moves over to the states, so that neither side is rounded much.
    """

    def __init__(self, embedding: Tensor) -> None:  # [vocabulary, state]
        balance = embedding.abs().amax(0).clamp_(min=MIN_AMAX).sqrt()
        super().__init__(embedding / balance)
        self.balance = balance

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states * self.balance)


class Int8Attention(Attention):
    """The encoder's, which gives each position all others of its window."""

    def __init__(self, plain: Attention) -> None:
        nn.Module.__init__(self)
        self.n_head = plain.n_head
        self.queries_keys = Int8Linear.of(plain.query, plain.key)
        self.is_half = half.is_fast_here()
        self.value, self.out = plain.value, plain.out
        if self.is_half:
            _halve(self)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = self.queries_keys(x).chunk(2, dim=-1)
        q, k, v = (self.split_heads(part) for part in (queries, keys, self.value(x)))
        return self.merge_heads(attend_fast(q, k, v) if self.is_half else attend(q, k, v))


class Int8MLP(MLP):
    def __init__(self, plain: MLP) -> None:
        nn.Module.__init__(self)
        self.wide, self.narrow = Int8Linear.of(plain[0]), Int8Linear.of(plain[2])

    def forward(self, x: Tensor) -> Tensor:
        blocks = torch.split(x.reshape(-1, x.shape[-1]), MLP_ROWS)
        return torch.cat([self.narrow(F.gelu(self.wide(block))) for block in blocks]).view(x.shape)
