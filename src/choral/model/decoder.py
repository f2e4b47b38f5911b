"""Whisper's text decoder. What was heard (cross) and what was written (self) lie in a `Memory` with places for many.

Rows of many windows go through it together. Products with the weights are made for all rows at once; only attention
looks at each place by itself. Beams of one window hear the same audio, so its keys and values lie there once, and the
beams stand side by side as queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from choral.model.dims import ModelDims
from choral.model.layers import MLP, Attention, attend, attend_with_scores


class Memory:
    """Keys and values in places of fixed size, each tensor [layers, slots, heads, positions, head_dim]."""

    def __init__(
        self,
        dims: ModelDims,
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
        heard_dtype: torch.dtype | None = None,
    ) -> None:
        head_dim = dims.n_text_state // dims.n_text_head

        def places(n_positions: int, dtype: torch.dtype) -> Tensor:
            shape = (dims.n_text_layer, n_slots, dims.n_text_head, n_positions, head_dim)
            return torch.empty(shape, device=device, dtype=dtype)

        self.keys, self.values = places(dims.n_text_ctx, dtype), places(dims.n_text_ctx, dtype)
        self.heard_keys = places(dims.n_audio_ctx, heard_dtype or dtype)
        self.heard_values = torch.empty_like(self.heard_keys)

    def store(self, layer: int, rows: Rows, k: Tensor, v: Tensor) -> None:
        """The newest tokens of all rows: whole prompts from the start, or one token each at its row's end."""
        if k.shape[2] > 1:
            self.keys[layer, rows.slots, :, : k.shape[2]] = k
            self.values[layer, rows.slots, :, : v.shape[2]] = v
        else:
            self.keys[layer, rows.slots, :, rows.lengths] = k[:, :, 0]
            self.values[layer, rows.slots, :, rows.lengths] = v[:, :, 0]

    def cross_attention(self, layer: int, queries: Tensor, rows: Rows) -> Tensor:  # [rows, heads, n, head_dim]
        attended = []
        for (slot, _), q in zip(rows.hearers, torch.split(queries, [n for _, n in rows.hearers]), strict=True):
            by_head = q.transpose(0, 1)  # [heads, rows, n, head_dim]
            keys, values = self.heard_keys[layer, slot : slot + 1], self.heard_values[layer, slot : slot + 1]
            heard = attend(by_head.flatten(1, 2)[None], keys, values)
            attended.append(heard.view(by_head.shape).transpose(0, 1))
        return torch.cat(attended)

    def copy(self, source_slots: Tensor, slots: Tensor, n_positions: int) -> None:
        """What was written in some places goes on in others, as beams that split or end do."""
        for written in (self.keys, self.values):
            written[:, slots, :, :n_positions] = written[:, source_slots, :, :n_positions]


@dataclass(frozen=True)
class Rows:
    """Which place each row of a batch writes to, how much is written there, and where its audio lies."""

    slots: Tensor
    lengths: Tensor
    # The same for the host, and rows that hear the same audio, which stand side by side, as one.
    slot_list: Sequence[int]
    length_list: Sequence[int]
    hearers: Sequence[tuple[int, int]]  # (slot of the audio, number of rows)
    prompt_lengths: Sequence[int]  # of rows that begin; what stands behind is there to fill the batch

    @classmethod
    def going_on(
        cls, slots: Sequence[int], lengths: Sequence[int], hearers: Sequence[tuple[int, int]], device: torch.device
    ) -> Rows:
        assert sum(n_rows for _, n_rows in hearers) == len(slots) == len(lengths)
        numbers = torch.tensor([slots, lengths], device=device)
        return cls(numbers[0], numbers[1], slots, lengths, hearers, ())

    @classmethod
    def beginning(cls, slots: Sequence[int], prompt_lengths: Sequence[int], device: torch.device) -> Rows:
        rows = cls.going_on(slots, [0] * len(slots), [(slot, 1) for slot in slots], device)
        return replace(rows, prompt_lengths=prompt_lengths)


def attend_prompts(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each by itself: what fills up the shorter ones weighs nothing, but their sums would be rounded otherwise."""
    attended = torch.zeros_like(q)
    for row, length in enumerate(lengths):
        own = (slice(row, row + 1), slice(None), slice(length))
        attended[own] = attend(q[own], k[own], v[own], causal=True)
    return attended


class DecoderBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = Attention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = Attention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = MLP(n_state)
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, layer: int, rows: Rows, memory: Memory) -> Tensor:  # [rows, n, state]
        x = x + self.attend_self(self.attn_ln(x), layer, rows, memory)
        x = x + self.attend_cross(self.cross_attn_ln(x), layer, rows, memory)
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp

    def attend_self(self, x: Tensor, layer: int, rows: Rows, memory: Memory) -> Tensor:
        q, (k, v) = self.attn.queries(x), self.attn.keys_values(x)
        memory.store(layer, rows, k, v)
        if rows.prompt_lengths:
            return self.attn.merge_heads(attend_prompts(q, k, v, rows.prompt_lengths))
        attended = []
        for row, (slot, length) in enumerate(zip(rows.slot_list, rows.length_list, strict=True)):
            keys = memory.keys[layer, slot : slot + 1, :, : length + 1]
            values = memory.values[layer, slot : slot + 1, :, : length + 1]
            attended.append(attend(q[row : row + 1], keys, values))
        return self.attn.merge_heads(torch.cat(attended))

    def attend_cross(self, x: Tensor, layer: int, rows: Rows, memory: Memory) -> Tensor:
        return self.cross_attn.merge_heads(memory.cross_attention(layer, self.cross_attn.queries(x), rows))

    def forward_with_scores(self, x: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences [n, tokens, state] at once, with the cross-attention scores [n, heads, tokens, frames]."""
        normed = self.attn_ln(x)
        k, v = self.attn.keys_values(normed)
        x = x + self.attn.merge_heads(attend(self.attn.queries(normed), k, v, causal=True))
        heard = self.cross_attn.keys_values(features)
        attended, scores = attend_with_scores(self.cross_attn.queries(self.cross_attn_ln(x)), *heard)
        x = x + self.cross_attn.merge_heads(attended)
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp, scores


class TextDecoder(nn.Module):
    blocks: Sequence[DecoderBlock]

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(dims.n_vocab, dims.n_text_state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, dims.n_text_state))
        blocks = [DecoderBlock(dims.n_text_state, dims.n_text_head) for _ in range(dims.n_text_layer)]
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # which is a sequence of them
        self.ln = nn.LayerNorm(dims.n_text_state)
        # Tokens are read and written by one matrix; whoever has a faster product with it puts it here.
        self.unembedding: nn.Module | None = None

    def hear(self, features: Tensor, slots: Sequence[int], memory: Memory) -> None:  # [n, frames, state]
        """Puts the keys and values of encoded audio into their places."""
        for layer, block in enumerate(self.blocks):
            keys, values = block.cross_attn.keys_values(features)
            for row, slot in enumerate(slots):
                memory.heard_keys[layer, slot].copy_(keys[row])
                memory.heard_values[layer, slot].copy_(values[row])

    def forward(self, tokens: Tensor, rows: Rows, memory: Memory) -> Tensor:
        """Runs `tokens` [rows, n], each row after what is written in its place; gives the states [rows, n, state]."""
        x = self.embed(tokens, rows.lengths)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, rows, memory)
        states: Tensor = self.ln(x)
        return states

    def forward_with_scores(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Runs whole sequences [n, tokens]; returns their states and each layer's cross-attention scores."""
        x, scores = self.embed(tokens, tokens.new_zeros(len(tokens))), []
        for block in self.blocks:
            x, layer_scores = block.forward_with_scores(x, features)
            scores.append(layer_scores)
        return self.ln(x), scores

    def embed(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """Each row's positions count on from its offset."""
        embedded: Tensor = self.token_embedding(tokens)
        positions = offsets[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        return embedded + self.positional_embedding[positions]

    def logits(self, states: Tensor) -> Tensor:  # [..., state] → [..., vocab], float32
        if self.unembedding is None:
            return nn.functional.linear(states, self.token_embedding.weight).float()
        logits: Tensor = self.unembedding(states)
        return logits
