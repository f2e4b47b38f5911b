"""Prefill on a GPU: write cross-attention K/V to the slots, run the prompts, and return their logits.

Short prompts, which most are, run as CUDA graphs; prompts with previous text run eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from choral.engine.gpu_graphs import StepGraphs
from choral.engine.gpu_state import GpuState
from choral.engine.runner import PrefillInput
from choral.model.dims import ModelDims
from choral.model.gpu_decoder import GpuDecoder, TokenRows
from choral.model.kv_cache import GpuKVCache
from choral.model.tokenizer import Tokenizer

SHORT_TOKENS = 4  # start of transcript, language, task, no timestamps
SIZES = (1, 2, 4, 6, 8, 12, 16, 21)
MAX_TOKENS = 8192  # in one pass, padding included


class GpuPrefill:
    def __init__(
        self, decoder: GpuDecoder, tokenizer: Tokenizer, dims: ModelDims, kv_cache: GpuKVCache, state: GpuState
    ) -> None:
        self._decoder, self._kv_cache, self._state = decoder, kv_cache, state
        self._sot, self._eot = tokenizer.sot, tokenizer.eot
        device, max_windows = state.device, max(SIZES)
        self._tokens = torch.full((max_windows, SHORT_TOKENS), tokenizer.sot, device=device)
        self._positions = torch.zeros(2, max_windows, dtype=torch.long, device=device)  # start of transcript, end
        self._slots = torch.full((max_windows,), state.pad_slot, dtype=torch.long, device=device)
        shape = (max_windows, dims.n_audio_ctx, dims.n_audio_state)
        self._features = torch.zeros(shape, dtype=kv_cache.keys.dtype, device=device)
        self._graphs = StepGraphs(self._forward_short, SIZES, device)

    def __call__(
        self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], features: Sequence[Tensor]
    ) -> Tensor:
        """The logits at each prompt's start of transcript, then at each one's end: [2, windows, tokens]."""
        short = [index for index, prompt in enumerate(prompts) if len(prompt) <= SHORT_TOKENS]
        long = [index for index, prompt in enumerate(prompts) if len(prompt) > SHORT_TOKENS]
        n_long = max(1, MAX_TOKENS // max(map(len, prompts)))
        passes = [(self._short, part) for part in parts_of(short, max(SIZES))]
        passes += [(self._long, part) for part in parts_of(long, n_long)]
        parts = [
            run([starts[i] for i in part], [prompts[i] for i in part], [features[i] for i in part])
            for run, part in passes
        ]
        logits = torch.cat(parts, dim=1)
        if not short or not long:
            return logits
        places = torch.tensor(short + long).argsort()
        return logits[:, self._state.to_device(places)]

    def _short(
        self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], features: Sequence[Tensor]
    ) -> Tensor:
        n, n_padded = len(starts), self._graphs.size_for(len(starts))
        slots = [start.slots[0] for start in starts] + [self._state.pad_slot] * (n_padded - n)
        columns = [*self._positions_of(prompts), *map(list, zip(*self._padded(prompts, SHORT_TOKENS), strict=True))]
        inputs = self._state.to_device(torch.tensor(columns))
        self._positions[:, :n], self._tokens[:n] = inputs[:2], inputs[2:].t()
        self._slots[:n_padded] = self._state.to_device(torch.tensor(slots))
        torch.stack(list(features), out=self._features[:n])
        return self._graphs.run(n)[:, :n].clone()

    def _forward_short(self, n: int) -> Tensor:
        inputs = self._tokens[:n], self._features[:n], self._slots[:n], self._positions[:, :n]
        return self._forward(*inputs)

    def _long(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], features: Sequence[Tensor]) -> Tensor:
        to_device = self._state.to_device
        tokens = to_device(torch.tensor(self._padded(prompts, max(map(len, prompts)))))
        slots = to_device(torch.tensor([start.slots[0] for start in starts]))
        positions = to_device(torch.tensor(self._positions_of(prompts)))
        return self._forward(tokens, torch.stack(list(features)), slots, positions)

    def _forward(self, tokens: Tensor, features: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        decoder, (n_windows, n_tokens) = self._decoder, tokens.shape
        decoder.write_cross_kv(features, slots, self._kv_cache)
        x = (decoder.embedding[tokens] + decoder.positions[:n_tokens]).flatten(0, 1)
        each = torch.arange(n_tokens, device=tokens.device)
        is_padding = each > positions[1][:, None]
        newest = each.expand(n_windows, -1).masked_fill(is_padding, -1).int().flatten()
        states = decoder(x, TokenRows(slots.int(), slots.int(), newest), self._kv_cache)
        rows = positions + torch.arange(n_windows, device=tokens.device) * n_tokens
        at_start, at_end = decoder.logits(states[rows.flatten()]).chunk(2)
        return torch.stack([at_start, at_end])

    def _padded(self, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
        """Padded at the end, where no earlier token attends."""
        return [[*prompt, *[self._eot] * (length - len(prompt))] for prompt in prompts]

    def _positions_of(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        return [[prompt.index(self._sot) for prompt in prompts], [len(prompt) - 1 for prompt in prompts]]


def parts_of(indices: list[int], size: int) -> list[list[int]]:
    return [indices[first : first + size] for first in range(0, len(indices), size)]
