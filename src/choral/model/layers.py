"""The building blocks that encoder and decoder share. Parameter names are OpenAI's, so checkpoints load as they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Projections of multi-head attention; what is attended to, and how it is cached, is the caller's affair."""

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
        """Every position attends to all of its window."""
        return self.merge_heads(attend(self.queries(x), *self.keys_values(x)))

    def split_heads(self, x: Tensor) -> Tensor:  # [batch, n, state] → [batch, heads, n, head_dim]
        return x.view(*x.shape[:2], self.n_head, -1).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:  # [batch, heads, n, head_dim] → [batch, n, state]
        projected: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Sequential):
    def __init__(self, n_state: int) -> None:
        super().__init__(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products before the softmax, in float32: what word alignment looks at."""
    scale = float(q.shape[-1]) ** -0.25  # on both sides, as half precision overflows otherwise
    scores: Tensor = (q * scale) @ (k * scale).transpose(-1, -2)
    return scores.float()


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def attend_with_scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = attention_scores(q, k)
    return torch.softmax(scores, dim=-1).to(q.dtype) @ v, scores
