"""Whisper's encoder and decoder in plain torch, with OpenAI's parameter names, so that checkpoints load as they are.

The decoder runs rows of many windows together: products with the weights are made for all rows at once, and attention
reads each row's slot of a `KVCache`. Optimised versions (`int8`, `gpu_encoder`, `gpu_decoder`) are built from this one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.kv_cache import BatchRows, KVCache


class Attention(nn.Module):
    """Projections of multi-head attention; the caller supplies and caches keys and values."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def queries(self, x: Tensor) -> Tensor:
        return self.split_heads(self.query(x))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def forward(self, x: Tensor) -> Tensor:
        """Every position attends to all positions of its window."""
        return self.merge_heads(F.scaled_dot_product_attention(self.queries(x), *self.keys_values(x)))

    def split_heads(self, x: Tensor) -> Tensor:  # [batch, n, state] → [batch, heads, n, head_dim]
        return x.view(*x.shape[:2], self.n_head, -1).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:  # [batch, heads, n, head_dim] → [batch, n, state]
        projected: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Sequential):
    def __init__(self, n_state: int) -> None:
        super().__init__(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))


class EncoderBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = Attention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.mlp = MLP(n_state)
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor) -> None:
        """In place: on a CPU, allocating memory for the sum costs more than the sum."""
        x += self.attn(self.attn_ln(x))
        x += self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    """Log-mel frames of 10 ms in, one state for every 20 ms out."""

    positional_embedding: Tensor
    blocks: Sequence[EncoderBlock]

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        n_state = dims.n_audio_state
        self.conv1 = nn.Conv1d(dims.n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(self.conv1.weight.new_empty(dims.n_audio_ctx, n_state))
        blocks = [EncoderBlock(n_state, dims.n_audio_head) for _ in range(dims.n_audio_layer)]
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # it is a sequence of them
        self.ln_post = nn.LayerNorm(n_state)

    def forward(self, mel: Tensor) -> Tensor:  # [n, mels, 2 * frames] → [n, frames, state]
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + self.positional_embedding
        for block in self.blocks:
            block(x)
        features: Tensor = self.ln_post(x)
        return features


class DecoderBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.attn = Attention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = Attention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = MLP(n_state)
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, layer: int, rows: BatchRows, cache: KVCache) -> Tensor:  # [rows, n, state]
        x = x + self.self_attention(self.attn_ln(x), layer, rows, cache)
        queries = self.cross_attn.queries(self.cross_attn_ln(x))
        x = x + self.cross_attn.merge_heads(cache.cross_attention(layer, queries, rows))
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp

    def self_attention(self, x: Tensor, layer: int, rows: BatchRows, cache: KVCache) -> Tensor:
        q, (k, v) = self.attn.queries(x), self.attn.keys_values(x)
        cache.write(layer, rows, k, v)
        if rows.prompt_lengths:
            return self.attn.merge_heads(causal_attention(q, k, v, rows.prompt_lengths))
        return self.attn.merge_heads(cache.self_attention(layer, q, rows))

    def forward_with_scores(self, x: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences [n, tokens, state] at once, with the cross-attention scores [n, heads, tokens, frames]."""
        normed = self.attn_ln(x)
        k, v = self.attn.keys_values(normed)
        attended = F.scaled_dot_product_attention(self.attn.queries(normed), k, v, is_causal=True)
        x = x + self.attn.merge_heads(attended)
        cross_k, cross_v = self.cross_attn.keys_values(features)
        queries = self.cross_attn.queries(self.cross_attn_ln(x))
        scores = attention_scores(queries, cross_k)
        x = x + self.cross_attn.merge_heads(torch.softmax(scores, dim=-1).to(queries.dtype) @ cross_v)
        mlp: Tensor = self.mlp(self.mlp_ln(x))
        return x + mlp, scores


def causal_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each prompt by itself: padding would have no weight, but would change how the sums are rounded."""
    attended = torch.zeros_like(q)
    for row, length in enumerate(lengths):
        prompt = (slice(row, row + 1), slice(None), slice(length))
        attended[prompt] = F.scaled_dot_product_attention(q[prompt], k[prompt], v[prompt], is_causal=True)
    return attended


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products before the softmax, in float32: the input of word alignment."""
    scale = float(q.shape[-1]) ** -0.25  # on both sides, because half precision overflows otherwise
    scores: Tensor = (q * scale) @ (k * scale).transpose(-1, -2)
    return scores.float()


class TextDecoder(nn.Module):
    blocks: Sequence[DecoderBlock]

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        # Without initial values: on the meta device, drawing them imports all of torch's compiler, for a second.
        self.token_embedding = nn.Embedding(
            dims.n_vocab, dims.n_text_state, _weight=torch.empty(dims.n_vocab, dims.n_text_state)
        )
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, dims.n_text_state))
        blocks = [DecoderBlock(dims.n_text_state, dims.n_text_head) for _ in range(dims.n_text_layer)]
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]  # it is a sequence of them
        self.ln = nn.LayerNorm(dims.n_text_state)
        # Replaces the product with the token embedding where a faster one exists.
        self.unembedding: nn.Module | None = None

    def write_cross_kv(self, features: Tensor, slots: Sequence[int], cache: KVCache) -> None:  # [n, frames, state]
        """Project encoded audio and write its cross-attention K/V to the slots."""
        for layer, block in enumerate(self.blocks):
            cache.write_cross_kv(layer, slots, *block.cross_attn.keys_values(features))

    def forward(self, tokens: Tensor, rows: BatchRows, cache: KVCache) -> Tensor:
        """The states [rows, n, state] of `tokens` [rows, n], each row continuing from its cached length."""
        x = self.embed(tokens, rows.lengths)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, rows, cache)
        states: Tensor = self.ln(x)
        return states

    def forward_with_scores(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The states of whole sequences [n, tokens], and the cross-attention scores of each layer."""
        x, scores = self.embed(tokens, tokens.new_zeros(len(tokens))), []
        for block in self.blocks:
            x, layer_scores = block.forward_with_scores(x, features)
            scores.append(layer_scores)
        return self.ln(x), scores

    def embed(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """Token and position embeddings; the positions of each row start at its offset."""
        embedded: Tensor = self.token_embedding(tokens)
        positions = offsets[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        return embedded + self.positional_embedding[positions]

    def logits(self, states: Tensor) -> Tensor:  # [..., state] → [..., vocab], float32
        if self.unembedding is None:
            return F.linear(states, self.token_embedding.weight).float()
        logits: Tensor = self.unembedding(states)
        return logits


class Whisper(nn.Module):
    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(dims)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Whisper:
        """Load tensor by tensor, so that the weights are never in memory twice."""
        checkpoint.validate()
        with torch.device("meta"):
            network = cls(checkpoint.dims)
        weights = {
            name: torch.tensor(checkpoint.tensors[name], dtype=dtype, device=device) for name in network.state_dict()
        }
        network.load_state_dict(weights, assign=True)
        return network.requires_grad_(False).eval()
