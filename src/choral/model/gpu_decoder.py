"""The decoder for GPUs: prompts in one prefill pass, then one token of every row per step, all on fixed shapes.

A step reads and writes through slot numbers, so windows join and leave without a copy, and never synchronises with the
host, so it can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from choral.kernels.cross_attention import cross_attention
from choral.kernels.embed import embed
from choral.kernels.fp8 import Fp8Rows, quantize_rows
from choral.kernels.gemv import MAX_ROWS, NormLinear, add_linear, norm_linear
from choral.kernels.norm import add_and_norm
from choral.kernels.sample import DecodeState
from choral.kernels.self_attention import self_attention
from choral.kernels.write_kv import write_cross_kv
from choral.model.gpu_layers import Fp8Linear, FusedLinear, LinearGelu, ResidualLinear, as_linears, attention
from choral.model.kv_cache import GpuKVCache
from choral.model.whisper import DecoderBlock, TextDecoder

VOCAB_ALIGNMENT = 128

Features = Tensor | Fp8Rows  # of all windows, [windows * frames, state]


class GpuDecoderBlock:
    def __init__(self, block: DecoderBlock, *, fp8: bool) -> None:
        attn, cross = block.attn, block.cross_attn
        query, key, value, out = as_linears(attn.query, attn.key, attn.value, attn.out)
        cross_query, cross_key, cross_value, cross_out = as_linears(cross.query, cross.key, cross.value, cross.out)
        wide, narrow = as_linears(block.mlp[0], block.mlp[2])
        self.n_head = attn.n_head
        self.attn_ln, self.cross_ln, self.mlp_ln = block.attn_ln, block.cross_attn_ln, block.mlp_ln
        self.qkv, self.out = FusedLinear(query, key, value), ResidualLinear(out)
        self.cross_query, self.cross_out = FusedLinear(cross_query), ResidualLinear(cross_out)
        cross_kv = FusedLinear(cross_key, cross_value)
        self.cross_kv: Callable[[Any], Tensor] = Fp8Linear(cross_kv.weight, cross_kv.bias) if fp8 else cross_kv
        self.wide, self.narrow = LinearGelu(wide.weight, wide.bias), ResidualLinear(narrow)
        self.gemv_qkv = _norm_linear(self.attn_ln, self.qkv)
        self.gemv_query = _norm_linear(self.cross_ln, self.cross_query)
        self.gemv_wide = _norm_linear(self.mlp_ln, self.wide)

    def step(
        self, x: Tensor, pending_bias: Tensor | None, layer: int, rows: StepRows, cache: GpuKVCache
    ) -> Tensor | None:
        if len(x) <= MAX_ROWS:
            self.step_gemv(x, layer, rows, cache)
            return None
        qkv = self.qkv(add_and_norm(x, pending_bias, self.attn_ln.weight, self.attn_ln.bias))
        pending_bias = self.out(x, self._self_attention(qkv, layer, rows, cache))
        query = self.cross_query(add_and_norm(x, pending_bias, self.cross_ln.weight, self.cross_ln.bias))
        return self._mlp(x, self.cross_out(x, self._cross_attention(query, layer, rows, cache)))

    def step_gemv(self, x: Tensor, layer: int, rows: StepRows, cache: GpuKVCache) -> None:
        """The same in fewer launches, for batches so small that launches and reading the weights take all the time."""
        qkv = norm_linear(x, self.gemv_qkv, is_first=layer == 0)
        add_linear(self._self_attention(qkv, layer, rows, cache), self.out.weight, self.out.bias, x)
        query = norm_linear(x, self.gemv_query)
        add_linear(self._cross_attention(query, layer, rows, cache), self.cross_out.weight, self.cross_out.bias, x)
        add_linear(norm_linear(x, self.gemv_wide, gelu=True), self.narrow.weight, self.narrow.bias, x)

    def _self_attention(self, qkv: Tensor, layer: int, rows: StepRows, cache: GpuKVCache) -> Tensor:
        keys, values = cache.keys[layer], cache.values[layer]
        return self_attention(qkv, keys, values, rows.slots, rows.positions)

    def _cross_attention(self, query: Tensor, layer: int, rows: StepRows, cache: GpuKVCache) -> Tensor:
        return cross_attention(
            query.view(len(query), self.n_head, -1), cache.cross_keys[layer], cache.cross_values[layer],
            rows.audio_slots, rows.positions, *cache.scales(layer),
        ).flatten(1)  # fmt: skip

    def prefill(
        self,
        x: Tensor,
        pending_bias: Tensor | None,
        layer: int,
        features: Features,
        slots: Tensor,
        cache: GpuKVCache,
        attend: Callable[..., Tensor],
    ) -> Tensor:
        """Whole prompts: x is [windows * tokens, state]. Writes self- and cross-attention K/V to the slots."""
        n_windows = len(slots)
        qkv = self.qkv(add_and_norm(x, pending_bias, self.attn_ln.weight, self.attn_ln.bias))
        q, k, v = qkv.view(n_windows, -1, 3, self.n_head, x.shape[1] // self.n_head).permute(2, 0, 3, 1, 4)
        cache.keys[layer, slots, :, : k.shape[2]], cache.values[layer, slots, :, : k.shape[2]] = k, v
        pending_bias = self.out(x, attend(q, k, v, causal=True).transpose(1, 2).reshape(x.shape))
        query = self.cross_query(add_and_norm(x, pending_bias, self.cross_ln.weight, self.cross_ln.bias))
        projected = self.cross_kv(features).view(n_windows, cache.cross_keys.shape[3], -1)
        write_cross_kv(projected, cache.cross_keys[layer], cache.cross_values[layer], slots, *cache.scales(layer))
        q = query.view(n_windows, -1, self.n_head, x.shape[1] // self.n_head).transpose(1, 2)
        k, v = projected.view(n_windows, -1, 2, self.n_head, q.shape[-1]).permute(2, 0, 3, 1, 4)
        return self._mlp(x, self.cross_out(x, attend(q, k, v).transpose(1, 2).reshape(x.shape)))

    def _mlp(self, x: Tensor, pending_bias: Tensor) -> Tensor:
        normed = add_and_norm(x, pending_bias, self.mlp_ln.weight, self.mlp_ln.bias)
        return self.narrow(x, self.wide(normed))


@dataclass(frozen=True)
class StepRows:
    """The rows of one decode step."""

    slots: Tensor  # of self-attention K/V
    audio_slots: Tensor  # of cross-attention K/V
    positions: Tensor  # of the newest token of each row; -1: the row is done


class GpuDecoder:
    def __init__(self, decoder: TextDecoder, *, fp8: bool = False) -> None:
        self.n_tokens = len(decoder.token_embedding.weight)
        # Padded with rows of zeros: the product is three times as slow if result rows are not aligned.
        n_padding = -self.n_tokens % VOCAB_ALIGNMENT
        self.embedding = nn.functional.pad(decoder.token_embedding.weight, (0, 0, 0, n_padding))
        decoder.token_embedding.weight = nn.Parameter(self.embedding[: self.n_tokens], requires_grad=False)
        self.positions = decoder.positional_embedding
        self.blocks = [GpuDecoderBlock(block, fp8=fp8) for block in decoder.blocks]
        self._is_fp8 = fp8
        self.ln = decoder.ln
        self.gemv_logits = NormLinear.of(self.ln.weight, self.ln.bias, self.embedding, None)

    def step(self, state: DecodeState, slots: Tensor, audio_slots: Tensor, cache: GpuKVCache) -> Tensor:
        """The logits [rows, tokens] after the newest token of each row."""
        x, positions = embed(state.next_tokens, state.lengths, state.is_done, slots, self.embedding, self.positions)
        rows = StepRows(slots, audio_slots, positions)
        pending_bias: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            pending_bias = block.step(x, pending_bias, layer, rows, cache)
        if len(x) <= MAX_ROWS:
            return norm_linear(x, self.gemv_logits, dtype=torch.float32)[:, : self.n_tokens]
        return self.logits(self._last_norm(x, pending_bias))

    def prefill(
        self, tokens: Tensor, features: Tensor, slots: Tensor, cache: GpuKVCache, *, few_shapes: bool
    ) -> Tensor:
        """The states [windows, n, state] of prompts [windows, n], whose K/V it writes to the slots."""
        attend = partial(attention, few_shapes=few_shapes)
        x = (self.embedding[tokens] + self.positions[: tokens.shape[1]]).flatten(0, 1)
        audio = quantize_rows(features.flatten(0, 1)) if self._is_fp8 else features.flatten(0, 1)
        pending_bias: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            pending_bias = block.prefill(x, pending_bias, layer, audio, slots, cache, attend)
        return self._last_norm(x, pending_bias).view(*tokens.shape, -1)

    def _last_norm(self, x: Tensor, pending_bias: Tensor | None) -> Tensor:
        return add_and_norm(x, pending_bias, self.ln.weight, self.ln.bias)

    def logits(self, states: Tensor) -> Tensor:  # [rows, state] → [rows, tokens], float32
        if states.is_cuda and states.dtype != torch.float32:
            return torch.mm(states, self.embedding.t(), out_dtype=torch.float32)[:, : self.n_tokens]
        return (states @ self.embedding.t()).float()[:, : self.n_tokens]


def _norm_linear(norm: nn.LayerNorm, layer: FusedLinear | LinearGelu) -> NormLinear:
    return NormLinear.of(norm.weight, norm.bias, layer.weight, layer.bias)
