"""The decoder as a GPU likes it: prompts in one pass, then one token of every row a step, all of it on fixed shapes.

A step reads and writes everything through slot numbers, so that windows join and leave without a copy, and makes no
question to the host: it can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from choral.kernels.cross_attention import cross_attention
from choral.kernels.embed import embed
from choral.kernels.fp8 import FP8, Fp8Rows, quantize_rows
from choral.kernels.gemv import MAX_ROWS, NormLinear, add_linear, norm_linear
from choral.kernels.norm import add_and_norm
from choral.kernels.sample import DecodeState
from choral.kernels.self_attention import self_attention
from choral.kernels.write_kv import write_cross_kv
from choral.model.decoder import DecoderBlock, Memory, TextDecoder
from choral.model.dims import ModelDims
from choral.model.gpu_layers import Added, BytesLinear, Joined, LinearGelu, attend, linears

ALIGNED = 128


Features = Tensor | Fp8Rows  # of all windows, [windows * frames, state]


class GpuMemory(Memory):
    """One place more than there are slots: rows that fill a batch up to its size point there."""

    def __init__(self, dims: ModelDims, n_slots: int, device: torch.device, dtype: torch.dtype, *, fp8: bool) -> None:
        super().__init__(dims, n_slots + 1, device, dtype, FP8 if fp8 else None)
        shape = (dims.n_text_layer, n_slots + 1, dims.n_text_head)
        self.key_scales = torch.ones(shape, device=device) if fp8 else None
        self.value_scales = torch.ones(shape, device=device) if fp8 else None

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        if self.key_scales is None or self.value_scales is None:
            return None, None
        return self.key_scales[layer], self.value_scales[layer]


class GpuDecoderBlock:
    def __init__(self, block: DecoderBlock, *, fp8: bool) -> None:
        attn, cross = block.attn, block.cross_attn
        query, key, value, out = linears(attn.query, attn.key, attn.value, attn.out)
        cross_query, cross_key, cross_value, cross_out = linears(cross.query, cross.key, cross.value, cross.out)
        wide, narrow = linears(block.mlp[0], block.mlp[2])
        self.n_head = attn.n_head
        self.attn_ln, self.cross_ln, self.mlp_ln = block.attn_ln, block.cross_attn_ln, block.mlp_ln
        self.qkv, self.out = Joined(query, key, value), Added(out)
        self.cross_query, self.cross_out = Joined(cross_query), Added(cross_out)
        heard = Joined(cross_key, cross_value)
        self.heard: Callable[[Any], Tensor] = BytesLinear(heard.weight, heard.bias) if fp8 else heard
        self.wide, self.narrow = LinearGelu(wide.weight, wide.bias), Added(narrow)
        self.few_qkv = _normed(self.attn_ln, self.qkv)
        self.few_query = _normed(self.cross_ln, self.cross_query)
        self.few_wide = _normed(self.mlp_ln, self.wide)

    def step(self, x: Tensor, added: Tensor | None, layer: int, rows: StepRows, memory: GpuMemory) -> Tensor | None:
        if len(x) <= MAX_ROWS:
            self.step_of_few(x, layer, rows, memory)
            return None
        qkv = self.qkv(add_and_norm(x, added, self.attn_ln.weight, self.attn_ln.bias))
        added = self.out(x, self._written(qkv, layer, rows, memory))
        query = self.cross_query(add_and_norm(x, added, self.cross_ln.weight, self.cross_ln.bias))
        return self._mlp(x, self.cross_out(x, self._heard(query, layer, rows, memory)))

    def step_of_few(self, x: Tensor, layer: int, rows: StepRows, memory: GpuMemory) -> None:
        """The same in fewer launches, where they and the reading of the weights are all that takes time."""
        qkv = norm_linear(x, self.few_qkv, is_first=layer == 0)
        add_linear(self._written(qkv, layer, rows, memory), self.out.weight, self.out.bias, x)
        query = norm_linear(x, self.few_query)
        add_linear(self._heard(query, layer, rows, memory), self.cross_out.weight, self.cross_out.bias, x)
        add_linear(norm_linear(x, self.few_wide, gelu=True), self.narrow.weight, self.narrow.bias, x)

    def _written(self, qkv: Tensor, layer: int, rows: StepRows, memory: GpuMemory) -> Tensor:
        keys, values = memory.keys[layer], memory.values[layer]
        return self_attention(qkv, keys, values, rows.slots, rows.newest)

    def _heard(self, query: Tensor, layer: int, rows: StepRows, memory: GpuMemory) -> Tensor:
        return cross_attention(
            query.view(len(query), self.n_head, -1), memory.heard_keys[layer], memory.heard_values[layer],
            rows.audio_slots, rows.newest, *memory.scales(layer),
        ).flatten(1)  # fmt: skip

    def prefill(
        self, x: Tensor, added: Tensor | None, layer: int, features: Features, slots: Tensor, memory: GpuMemory
    ) -> Tensor:
        """Whole prompts; x is [windows * tokens, state]. What they heard takes its place on the way."""
        n_windows = len(slots)
        qkv = self.qkv(add_and_norm(x, added, self.attn_ln.weight, self.attn_ln.bias))
        q, k, v = qkv.view(n_windows, -1, 3, self.n_head, x.shape[1] // self.n_head).permute(2, 0, 3, 1, 4)
        memory.keys[layer, slots, :, : k.shape[2]], memory.values[layer, slots, :, : k.shape[2]] = k, v
        added = self.out(x, attend(q, k, v, causal=True).transpose(1, 2).reshape(x.shape))
        query = self.cross_query(add_and_norm(x, added, self.cross_ln.weight, self.cross_ln.bias))
        projected = self.heard(features).view(n_windows, memory.heard_keys.shape[3], -1)
        write_cross_kv(projected, memory.heard_keys[layer], memory.heard_values[layer], slots, *memory.scales(layer))
        q = query.view(n_windows, -1, self.n_head, x.shape[1] // self.n_head).transpose(1, 2)
        k, v = projected.view(n_windows, -1, 2, self.n_head, q.shape[-1]).permute(2, 0, 3, 1, 4)
        return self._mlp(x, self.cross_out(x, attend(q, k, v).transpose(1, 2).reshape(x.shape)))

    def _mlp(self, x: Tensor, added: Tensor) -> Tensor:
        normed = add_and_norm(x, added, self.mlp_ln.weight, self.mlp_ln.bias)
        return self.narrow(x, self.wide(normed))


@dataclass(frozen=True)
class StepRows:
    """The rows of a step: where they write, where what they heard lies, and their newest positions, -1 if done."""

    slots: Tensor
    audio_slots: Tensor
    newest: Tensor


class GpuDecoder:
    def __init__(self, decoder: TextDecoder, *, fp8: bool = False) -> None:
        self.n_tokens = len(decoder.token_embedding.weight)
        # Rows of nothing at the end: products whose rows of results start at odd addresses are three times as slow.
        filled = -(-self.n_tokens // ALIGNED) * ALIGNED - self.n_tokens
        self.embedding = nn.functional.pad(decoder.token_embedding.weight, (0, 0, 0, filled))
        decoder.token_embedding.weight = nn.Parameter(self.embedding[: self.n_tokens], requires_grad=False)
        self.positions = decoder.positional_embedding
        self.blocks = [GpuDecoderBlock(block, fp8=fp8) for block in decoder.blocks]
        self._is_fp8 = fp8
        self.ln = decoder.ln
        self.few_logits = NormLinear.of(self.ln.weight, self.ln.bias, self.embedding, None)

    def step(self, progress: DecodeState, slots: Tensor, audio_slots: Tensor, memory: GpuMemory) -> Tensor:
        """The logits [rows, tokens] after the newest token of every row."""
        x, newest = embed(
            progress.next_tokens, progress.lengths, progress.is_done, slots, self.embedding, self.positions
        )
        rows = StepRows(slots, audio_slots, newest)
        added: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            added = block.step(x, added, layer, rows, memory)
        if len(x) <= MAX_ROWS:
            return norm_linear(x, self.few_logits, dtype=torch.float32)[:, : self.n_tokens]
        return self.logits(self._last_norm(x, added))

    def prefill(self, tokens: Tensor, features: Tensor, slots: Tensor, memory: GpuMemory) -> Tensor:
        """Prompts [windows, n] from the start; gives their states [windows, n, state]."""
        x = (self.embedding[tokens] + self.positions[: tokens.shape[1]]).flatten(0, 1)
        heard = quantize_rows(features.flatten(0, 1)) if self._is_fp8 else features.flatten(0, 1)
        added: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            added = block.prefill(x, added, layer, heard, slots, memory)
        return self._last_norm(x, added).view(*tokens.shape, -1)

    def _last_norm(self, x: Tensor, added: Tensor | None) -> Tensor:
        return add_and_norm(x, added, self.ln.weight, self.ln.bias)

    def logits(self, states: Tensor) -> Tensor:  # [rows, state] → [rows, tokens], float32
        if states.is_cuda and states.dtype != torch.float32:
            return torch.mm(states, self.embedding.t(), out_dtype=torch.float32)[:, : self.n_tokens]
        return (states @ self.embedding.t()).float()[:, : self.n_tokens]


def _normed(norm: nn.LayerNorm, layer: Joined | LinearGelu) -> NormLinear:
    return NormLinear.of(norm.weight, norm.bias, layer.weight, layer.bias)
