"""The decoder's KV cache: self-attention and cross-attention keys and values of many windows, in slots of fixed size.

`KVCache` holds all of it in the model's dtype, `Bf16KVCache` keeps the cross-attention part in bfloat16 for CPUs that
multiply it natively, and `GpuKVCache` may keep it in fp8. `BatchRows` says which slots the rows of a batch use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.model.dims import ModelDims


@dataclass(frozen=True)
class BatchRows:
    """The slot each row writes to, its length so far, and the slots that hold the audio of the rows.

    Beams of one window attend to the same audio: they stand side by side and form one audio group.
    """

    slots: Tensor
    lengths: Tensor
    slot_list: Sequence[int]  # the same as lists, so that reading them does not wait for the device
    length_list: Sequence[int]
    audio_groups: Sequence[tuple[int, int]]  # (slot of the audio, number of rows)
    prompt_lengths: Sequence[int]  # for prefill only; tokens behind a prompt's length are padding

    @classmethod
    def for_decode(
        cls,
        slots: Sequence[int],
        lengths: Sequence[int],
        audio_groups: Sequence[tuple[int, int]],
        device: torch.device,
    ) -> BatchRows:
        assert sum(n_rows for _, n_rows in audio_groups) == len(slots) == len(lengths)
        on_device = torch.tensor([slots, lengths], device=device)
        return cls(on_device[0], on_device[1], slots, lengths, audio_groups, ())

    @classmethod
    def for_prefill(cls, slots: Sequence[int], prompt_lengths: Sequence[int], device: torch.device) -> BatchRows:
        rows = cls.for_decode(slots, [0] * len(slots), [(slot, 1) for slot in slots], device)
        return replace(rows, prompt_lengths=prompt_lengths)


class KVCache:
    """Each tensor is [layers, slots, heads, positions, head_dim]; `keys` and `values` are those of self-attention."""

    def __init__(
        self,
        dims: ModelDims,
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
        cross_dtype: torch.dtype | None = None,
    ) -> None:
        head_dim = dims.n_text_state // dims.n_text_head

        def allocate(n_positions: int, dtype: torch.dtype) -> Tensor:
            shape = (dims.n_text_layer, n_slots, dims.n_text_head, n_positions, head_dim)
            return torch.empty(shape, device=device, dtype=dtype)

        self.keys, self.values = allocate(dims.n_text_ctx, dtype), allocate(dims.n_text_ctx, dtype)
        self.cross_keys = allocate(dims.n_audio_ctx, cross_dtype or dtype)
        self.cross_values = torch.empty_like(self.cross_keys)

    def write(self, layer: int, rows: BatchRows, k: Tensor, v: Tensor) -> None:
        """Write self-attention K/V: whole prompts from position 0, or one token at the end of each row."""
        if k.shape[2] > 1:
            self.keys[layer, rows.slots, :, : k.shape[2]] = k
            self.values[layer, rows.slots, :, : v.shape[2]] = v
        else:
            self.keys[layer, rows.slots, :, rows.lengths] = k[:, :, 0]
            self.values[layer, rows.slots, :, rows.lengths] = v[:, :, 0]

    def write_cross_kv(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        for row, slot in enumerate(slots):
            self.cross_keys[layer, slot].copy_(k[row])
            self.cross_values[layer, slot].copy_(v[row])

    def self_attention(self, layer: int, queries: Tensor, rows: BatchRows) -> Tensor:  # [rows, heads, 1, head_dim]
        """Each row attends to its own slot, so nothing is padded."""
        attended = []
        for row, (slot, length) in enumerate(zip(rows.slot_list, rows.length_list, strict=True)):
            keys = self.keys[layer, slot : slot + 1, :, : length + 1]
            values = self.values[layer, slot : slot + 1, :, : length + 1]
            attended.append(F.scaled_dot_product_attention(queries[row : row + 1], keys, values))
        return torch.cat(attended)

    def cross_attention(self, layer: int, queries: Tensor, rows: BatchRows) -> Tensor:  # [rows, heads, n, head_dim]
        attended = []
        groups = torch.split(queries, [n_rows for _, n_rows in rows.audio_groups])
        for (slot, _), q in zip(rows.audio_groups, groups, strict=True):
            by_head = q.transpose(0, 1)  # [heads, rows, n, head_dim]
            keys, values = self.cross_keys[layer, slot : slot + 1], self.cross_values[layer, slot : slot + 1]
            result = F.scaled_dot_product_attention(by_head.flatten(1, 2)[None], keys, values)
            attended.append(result.view(by_head.shape).transpose(0, 1))
        return torch.cat(attended)

    def copy(self, source_slots: Tensor, slots: Tensor, n_positions: int) -> None:
        """Copy self-attention K/V between slots, when beams split or end; without the memory for it, copy nothing."""
        moved = self.keys[:, source_slots, :, :n_positions]  # the only allocation: values pass through it too
        self.keys[:, slots, :, :n_positions] = moved
        torch.index_select(self.values[:, :, :, :n_positions], 1, source_slots, out=moved)
        self.values[:, slots, :, :n_positions] = moved


class Bf16KVCache(KVCache):
    """Cross-attention K/V in bfloat16: reading it is most of a decode step, and this halves the bytes.

    Adjacent slots are read in one product.
    """

    def cross_attention(self, layer: int, queries: Tensor, rows: BatchRows) -> Tensor:  # [rows, heads, n, head_dim]
        scaled = (queries * queries.shape[-1] ** -0.5).bfloat16()
        attended = torch.empty_like(queries)
        first_row = 0
        for slot, n_slots, n_rows in adjacent_groups(rows.audio_groups):
            batch = slice(first_row, first_row := first_row + n_slots * n_rows)
            q = scaled[batch].unflatten(0, (n_slots, n_rows)).transpose(1, 2)  # [slots, heads, rows, n, head_dim]
            slots = slice(slot, slot + n_slots)
            scores = q.flatten(2, 3) @ self.cross_keys[layer, slots].mT
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).bfloat16()
            result = (weights @ self.cross_values[layer, slots]).view(q.shape)
            attended[batch] = result.transpose(1, 2).flatten(0, 1)
        return attended


def adjacent_groups(audio_groups: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Runs of adjacent slots with equally many rows: (first slot, number of slots, rows of each)."""
    start = 0
    for end in range(1, len(audio_groups) + 1):
        slot, n_rows = audio_groups[start]
        if end == len(audio_groups) or audio_groups[end] != (slot + end - start, n_rows):
            yield slot, end - start, n_rows
            start = end


class GpuKVCache(KVCache):
    """Has one slot more than `n_slots`: the rows that pad a batch to its size use it."""

    def __init__(self, dims: ModelDims, n_slots: int, device: torch.device, dtype: torch.dtype, *, fp8: bool) -> None:
        super().__init__(dims, n_slots + 1, device, dtype, torch.float8_e4m3fn if fp8 else None)
        shape = (dims.n_text_layer, n_slots + 1, dims.n_text_head)
        self.key_scales = torch.ones(shape, device=device) if fp8 else None
        self.value_scales = torch.ones(shape, device=device) if fp8 else None

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """The scales of fp8 cross-attention keys and values, [slots, heads] each."""
        if self.key_scales is None or self.value_scales is None:
            return None, None
        return self.key_scales[layer], self.value_scales[layer]
