"""The prompts of new windows on a GPU: what they heard takes its place, and their first logits come out.

Short prompts, which most are, run as CUDA graphs; those that carry the text before run as they come.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from choral.engine.gpu_graphs import StepGraphs
from choral.engine.gpu_state import GpuState
from choral.engine.runner import PrefillInput
from choral.model.dims import ModelDims
from choral.model.gpu_decoder import GpuDecoder
from choral.model.kv_cache import GpuKVCache
from choral.model.tokenizer import Tokenizer

SHORT = 4  # tokens: start of transcript, language, task, no timestamps
SIZES = (1, 2, 4, 6, 8, 12, 16, 21)
MOST_TOKENS = 8192  # in one pass, padding included


class GpuPrefill:
    def __init__(
        self, decoder: GpuDecoder, tokenizer: Tokenizer, dims: ModelDims, memory: GpuKVCache, state: GpuState
    ) -> None:
        self._decoder, self._memory, self._state = decoder, memory, state
        self._sot, self._eot = tokenizer.sot, tokenizer.eot
        self._nobody = state.n_entries - 1
        device, n_most = state.device, max(SIZES)
        self._tokens = torch.full((n_most, SHORT), tokenizer.sot, device=device)
        self._asked = torch.zeros(2, n_most, dtype=torch.long, device=device)  # positions of start and end
        self._slots = torch.full((n_most,), self._nobody, dtype=torch.long, device=device)
        shape = (n_most, dims.n_audio_ctx, dims.n_audio_state)
        self._features = torch.zeros(shape, dtype=memory.keys.dtype, device=device)
        self._graphs = StepGraphs(self._run_short, SIZES, device)

    def __call__(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]]) -> Tensor:
        """The logits at each prompt's start of transcript, then at each one's end: [2, windows, tokens]."""
        is_short = max(map(len, prompts)) <= SHORT
        n_together = max(SIZES) if is_short else max(1, MOST_TOKENS // max(map(len, prompts)))
        run = self._short if is_short else self._long
        parts = [slice(first, first + n_together) for first in range(0, len(starts), n_together)]
        return torch.cat([run(starts[part], prompts[part]) for part in parts], dim=1)

    def _short(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]]) -> Tensor:
        n, n_run = len(starts), self._graphs.size_for(len(starts))
        slots = [start.slots[0] for start in starts] + [self._nobody] * (n_run - n)
        numbers = [*self._asked_of(prompts), *map(list, zip(*self._padded(prompts, SHORT), strict=True))]
        moved = self._state.moved(torch.tensor(numbers))
        self._asked[:, :n], self._tokens[:n] = moved[:2], moved[2:].t()
        self._slots[:n_run] = self._state.moved(torch.tensor(slots))
        torch.stack([start.features for start in starts], out=self._features[:n])
        return self._graphs.run(n)[:, :n].clone()

    def _run_short(self, n: int) -> Tensor:
        return self._run(self._tokens[:n], self._features[:n], self._slots[:n], self._asked[:, :n])

    def _long(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]]) -> Tensor:
        moved = self._state.moved
        tokens = moved(torch.tensor(self._padded(prompts, max(map(len, prompts)))))
        features = torch.stack([start.features for start in starts])
        slots = moved(torch.tensor([start.slots[0] for start in starts]))
        return self._run(tokens, features, slots, moved(torch.tensor(self._asked_of(prompts))))

    def _run(self, tokens: Tensor, features: Tensor, slots: Tensor, asked: Tensor) -> Tensor:
        states = self._decoder.prefill(tokens, features, slots, self._memory)
        n_windows, n_tokens, n_state = states.shape
        rows = asked + torch.arange(n_windows, device=tokens.device) * n_tokens
        at_start, at_end = self._decoder.logits(states.view(-1, n_state)[rows.flatten()]).chunk(2)
        return torch.stack([at_start, at_end])

    def _padded(self, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
        """At their end, where no earlier token looks."""
        return [[*prompt, *[self._eot] * (length - len(prompt))] for prompt in prompts]

    def _asked_of(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        return [[prompt.index(self._sot) for prompt in prompts], [len(prompt) - 1 for prompt in prompts]]
