"""The decoder for GPUs: a pass over one or more tokens of every row, all on fixed shapes.

A pass is a decode step (one token of each row), a prefill (whole prompts), or the verification of drafted tokens. It
reads and writes through slot numbers, so windows join and leave without a copy, and never synchronises with the host,
so it can be captured as a CUDA graph. What it computes for a token depends on no other row or token, to the bit
(unless `is_invariant` is off).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from choral.kernels.cross_attention import cross_attention
from choral.kernels.fp8 import Fp8Rows, quantize_rows
from choral.kernels.linear import LinearLayer, fold_norm
from choral.kernels.norm import add_and_norm
from choral.kernels.self_attention import self_attention
from choral.kernels.write_kv import write_cross_kv
from choral.model.gpu_layers import Fp8Linear, FusedLinear, as_linears
from choral.model.kv_cache import GpuKVCache
from choral.model.whisper import DecoderBlock, TextDecoder

VOCAB_ALIGNMENT = 128

Features = Tensor | Fp8Rows  # of all windows, [windows * frames, state]


@dataclass(frozen=True)
class TokenRows:
    """The rows of one pass, each with the same number of tokens."""

    slots: Tensor  # [rows], of self-attention K/V
    audio_slots: Tensor  # [rows], of cross-attention K/V
    positions: Tensor  # [rows * tokens]; -1: no token. A row's tokens come first


class GpuDecoderBlock:
    def __init__(self, block: DecoderBlock, *, fp8: bool, is_invariant: bool) -> None:
        attn, cross = block.attn, block.cross_attn
        query, key, value, out = as_linears(attn.query, attn.key, attn.value, attn.out)
        cross_query, cross_key, cross_value, cross_out = as_linears(cross.query, cross.key, cross.value, cross.out)
        wide, narrow = as_linears(block.mlp[0], block.mlp[2])
        fold_norm(block.attn_ln, query, key, value)
        fold_norm(block.cross_attn_ln, cross_query)
        fold_norm(block.mlp_ln, wide)
        qkv, cross_kv = FusedLinear(query, key, value), FusedLinear(cross_key, cross_value)
        self.n_head = attn.n_head
        layer = partial(LinearLayer, is_invariant=is_invariant)
        self.qkv, self.out = layer(qkv.weight, qkv.bias, is_normed=True), layer(out.weight, out.bias)
        self.cross_query = layer(cross_query.weight, cross_query.bias, is_normed=True)
        self.cross_out = layer(cross_out.weight, cross_out.bias)
        self.cross_kv: Callable[[Any], Tensor] = Fp8Linear(cross_kv.weight, cross_kv.bias) if fp8 else cross_kv
        self.wide = layer(wide.weight, wide.bias, is_normed=True)
        self.narrow = layer(narrow.weight, narrow.bias)

    def __call__(self, x: Tensor, layer: int, rows: TokenRows, cache: GpuKVCache) -> None:
        """Update the states [rows * tokens, state] in place, and write self-attention K/V to the slots."""
        qkv = self.qkv(x, is_first=layer == 0)
        self.out.add_to(x, self_attention(qkv, cache.keys[layer], cache.values[layer], rows.slots, rows.positions))
        query = self.cross_query(x).view(len(x), self.n_head, -1)
        keys, values = cache.cross_keys[layer], cache.cross_values[layer]
        attended = cross_attention(query, keys, values, rows.audio_slots, rows.positions, *cache.scales(layer))
        self.cross_out.add_to(x, attended.flatten(1))
        self.narrow.add_to(x, self.wide(x, gelu=True))

    def write_cross_kv(self, features: Features, layer: int, slots: Tensor, cache: GpuKVCache) -> None:
        projected = self.cross_kv(features).view(len(slots), cache.cross_keys.shape[3], -1)
        write_cross_kv(projected, cache.cross_keys[layer], cache.cross_values[layer], slots, *cache.scales(layer))


class GpuDecoder:
    def __init__(self, decoder: TextDecoder, *, fp8: bool = False, is_invariant: bool = True) -> None:
        self.n_tokens = len(decoder.token_embedding.weight)
        # Padded with rows of zeros: kernels for the logits write whole tiles.
        n_padding = -self.n_tokens % VOCAB_ALIGNMENT
        self.embedding = nn.functional.pad(decoder.token_embedding.weight, (0, 0, 0, n_padding))
        decoder.token_embedding.weight = nn.Parameter(self.embedding[: self.n_tokens], requires_grad=False)
        self.positions = decoder.positional_embedding
        self.blocks = [GpuDecoderBlock(block, fp8=fp8, is_invariant=is_invariant) for block in decoder.blocks]
        self._is_fp8 = fp8
        self._ln = decoder.ln
        no_bias = self.embedding.new_zeros(len(self.embedding))
        self._logits = LinearLayer(self.embedding, no_bias, is_invariant=is_invariant)

    def write_cross_kv(self, features: Tensor, slots: Tensor, cache: GpuKVCache) -> None:
        """Project the encoder's features [windows, frames, state] to cross-attention K/V of the slots."""
        audio = quantize_rows(features.flatten(0, 1)) if self._is_fp8 else features.flatten(0, 1)
        for layer, block in enumerate(self.blocks):
            block.write_cross_kv(audio, layer, slots, cache)

    def __call__(self, x: Tensor, rows: TokenRows, cache: GpuKVCache) -> Tensor:
        """The states [rows * tokens, state] of embedded tokens after all layers."""
        for layer, block in enumerate(self.blocks):
            block(x, layer, rows, cache)
        return x

    def logits(self, states: Tensor) -> Tensor:  # [rows, state] → [rows, tokens], float32
        normed = add_and_norm(states, None, self._ln.weight, self._ln.bias)
        return self._logits(normed, dtype=torch.float32)[:, : self.n_tokens]
