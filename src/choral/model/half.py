"""Linear layers and what was heard in bfloat16, for CPUs that multiply it natively.

What goes in and comes out is float32, so that sums over layers and norms keep their precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.model.decoder import Memory, Rows


def is_fast_here() -> bool:
    return torch.cpu._is_avx512_bf16_supported()


class HalfLinear(nn.Linear):
    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        # A checkpoint may hold its weights transposed, and each call would turn them around.
        self.weight = nn.Parameter(plain.weight.bfloat16().contiguous(), requires_grad=False)
        bias = None if plain.bias is None else nn.Parameter(plain.bias.bfloat16(), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.bfloat16().view(-1, self.in_features)
        if len(rows) == 1:  # a product of its own kind, rounded otherwise: a row must not notice that it is alone
            rows = rows.expand(2, -1)
        product = F.linear(rows, self.weight, self.bias).float()
        return product[: x.numel() // self.in_features].view(*x.shape[:-1], -1)


class HalfMemory(Memory):
    """Reading what was heard is most of a step's work: in bfloat16 it is half of it, for neighbours in one product."""

    def cross_attention(self, layer: int, queries: Tensor, rows: Rows) -> Tensor:  # [rows, heads, n, head_dim]
        scaled = (queries * queries.shape[-1] ** -0.5).bfloat16()
        attended = torch.empty_like(queries)
        first_row = 0
        for slot, n_hearers, n_rows in runs(rows.hearers):
            own = slice(first_row, first_row := first_row + n_hearers * n_rows)
            q = scaled[own].unflatten(0, (n_hearers, n_rows)).transpose(1, 2)  # [hearers, heads, rows, n, head_dim]
            places = slice(slot, slot + n_hearers)
            scores = q.flatten(2, 3) @ self.heard_keys[layer, places].mT
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).bfloat16()
            heard = (weights @ self.heard_values[layer, places]).view(q.shape)
            attended[own] = heard.transpose(1, 2).flatten(0, 1)
        return attended


def runs(hearers: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Neighbours with as many rows each: (first slot, number of neighbours, rows of each)."""
    start = 0
    for end in range(1, len(hearers) + 1):
        slot, n_rows = hearers[start]
        if end == len(hearers) or hearers[end] != (slot + end - start, n_rows):
            yield slot, end - start, n_rows
            start = end
