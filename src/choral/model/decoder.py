"""Whisper's text decoder, with its two memories passed in: what was heard (cross) and what was written (self).

Rows of many windows go through it together, each window a `Group` of rows. All rows of a group decode the same audio,
so the cross keys and values are kept once and the rows stand side by side as queries: a beam costs no copy of them.
Products with the weights are made for all rows at once; only attention looks at each group by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from choral.model.dims import ModelDims
from choral.model.layers import MLP, Attention, attend, attend_with_scores


@dataclass(frozen=True)
class CrossMemory:
    """Keys and values of the encoder's output, a pair for each layer."""

    layers: tuple[tuple[Tensor, Tensor], ...]  # each [1, heads, frames, head_dim]


class SelfMemory:
    """Keys and values of the tokens so far, in buffers of fixed size, so that a step appends without a copy."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        self.keys, self.values = keys, values  # each [layers, rows, heads, text_ctx, head_dim]
        self.length = length

    @classmethod
    def empty(cls, dims: ModelDims, like: Tensor) -> SelfMemory:
        """Room for one row, of the precision and on the device of `like`."""
        head_dim = dims.n_text_state // dims.n_text_head
        shape = (dims.n_text_layer, 1, dims.n_text_head, dims.n_text_ctx, head_dim)
        return cls(like.new_empty(shape), like.new_empty(shape), 0)

    def repeated(self, n_rows: int) -> SelfMemory:
        """The prompt is the same for all rows of a group: it runs once, and every row starts from a copy."""
        keys, values = (x.repeat_interleave(n_rows, dim=1) for x in (self.keys, self.values))
        return SelfMemory(keys, values, self.length)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the newest tokens of one layer; the length moves on once for all layers, in `advance`."""
        stop = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : stop] = k
        self.values[layer, :, :, self.length : stop] = v
        return self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]

    def advance(self, n_tokens: int) -> None:
        self.length += n_tokens

    def select_rows(self, rows: Tensor) -> None:
        self.keys[:, :, :, : self.length] = self.keys[:, rows, :, : self.length]
        self.values[:, :, :, : self.length] = self.values[:, rows, :, : self.length]


@dataclass(frozen=True)
class Group:
    """The rows of one window."""

    memory: SelfMemory
    heard: CrossMemory

    @property
    def n_rows(self) -> int:
        return self.memory.keys.shape[1]


class DecoderBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = Attention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = Attention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = MLP(n_state)
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, layer: int, groups: Sequence[Group]) -> Tensor:  # [rows, n, state]
        x = x + self.attend_self(self.attn_ln(x), layer, groups)
        x = x + self.attend_cross(self.cross_attn_ln(x), layer, groups)
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp

    def attend_self(self, x: Tensor, layer: int, groups: Sequence[Group]) -> Tensor:
        sizes = [group.n_rows for group in groups]
        parts = (self.attn.queries(x), *self.attn.keys_values(x))
        projected = zip(*(torch.split(part, sizes) for part in parts), strict=True)
        attended = []
        for group, (q, k, v) in zip(groups, projected, strict=True):
            is_prompt = group.memory.length == 0  # otherwise one token a row, which may see everything
            assert is_prompt or x.shape[1] == 1
            keys, values = group.memory.append(layer, k, v)
            attended.append(attend(q, keys, values, causal=is_prompt and x.shape[1] > 1))
        return self.attn.merge_heads(torch.cat(attended))

    def attend_cross(self, x: Tensor, layer: int, groups: Sequence[Group]) -> Tensor:
        queries = torch.split(self.cross_attn.queries(x), [group.n_rows for group in groups])
        attended = []
        for group, q in zip(groups, queries, strict=True):
            by_head = q.transpose(0, 1)  # [heads, rows, n, head_dim]
            heard = attend(by_head.flatten(1, 2)[None], *group.heard.layers[layer])
            attended.append(heard.view(by_head.shape).transpose(0, 1))
        return self.cross_attn.merge_heads(torch.cat(attended))

    def forward_with_scores(self, x: Tensor, heard: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """One whole sequence at once, with the cross-attention scores [heads, n, frames]."""
        normed = self.attn_ln(x)
        k, v = self.attn.keys_values(normed)
        x = x + self.attn.merge_heads(attend(self.attn.queries(normed), k, v, causal=True))
        attended, scores = attend_with_scores(self.cross_attn.queries(self.cross_attn_ln(x)), *heard)
        x = x + self.cross_attn.merge_heads(attended)
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp, scores[0]


class TextDecoder(nn.Module):
    blocks: Sequence[DecoderBlock]

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(dims.n_vocab, dims.n_text_state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, dims.n_text_state))
        blocks = [DecoderBlock(dims.n_text_state, dims.n_text_head) for _ in range(dims.n_text_layer)]
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # which is a sequence of them
        self.ln = nn.LayerNorm(dims.n_text_state)

    def hear(self, features: Tensor) -> CrossMemory:  # [1, frames, state]
        return CrossMemory(tuple(block.cross_attn.keys_values(features) for block in self.blocks))

    def forward(self, tokens: Tensor, groups: Sequence[Group]) -> Tensor:
        """Runs `tokens` [rows, n], each row after what its group remembers; gives the last states [rows, n, state]."""
        lengths = [group.memory.length for group in groups for _ in range(group.n_rows)]
        x = self.embed(tokens, torch.tensor(lengths, device=tokens.device))
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, groups)
        for group in groups:
            group.memory.advance(tokens.shape[1])
        states: Tensor = self.ln(x)
        return states

    def forward_with_scores(self, tokens: Tensor, heard: CrossMemory) -> tuple[Tensor, list[Tensor]]:
        """Runs one whole sequence [1, n]; returns its states and each layer's cross-attention scores."""
        x, scores = self.embed(tokens, tokens.new_zeros(1)), []
        for layer, block in enumerate(self.blocks):
            x, layer_scores = block.forward_with_scores(x, heard.layers[layer])
            scores.append(layer_scores)
        return self.ln(x), scores

    def embed(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """Each row's positions count on from its offset."""
        embedded: Tensor = self.token_embedding(tokens)
        positions = offsets[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        return embedded + self.positional_embedding[positions]

    def logits(self, states: Tensor) -> Tensor:  # [..., state] → [..., vocab], float32
        return nn.functional.linear(states, self.token_embedding.weight).float()
