"""A draft model on a GPU: proposes tokens that the model it works for then verifies in one pass.

It decodes the same slots with its own K/V, from a copy of their state, so every rule applies to its proposals too. It
shares the encoder's features if it was distilled with the same encoder, and encodes by itself otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from choral.engine.gpu_encode import GpuEncode
from choral.engine.gpu_prefill import GpuPrefill
from choral.engine.gpu_state import GpuState, decode_state
from choral.engine.runner import PrefillInput
from choral.errors import UsageError
from choral.kernels.embed import embed
from choral.kernels.sample import sample
from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.drafts import has_same_encoder
from choral.model.gpu_decoder import GpuDecoder, TokenRows
from choral.model.gpu_encoder import GpuEncoder
from choral.model.gpu_layers import make_contiguous
from choral.model.kv_cache import GpuKVCache
from choral.model.tokenizer import Tokenizer
from choral.model.whisper import Whisper


def require_same_vocabulary(draft: ModelDims, target: ModelDims) -> None:
    if (draft.n_vocab, draft.n_text_ctx) != (target.n_vocab, target.n_text_ctx):
        raise UsageError(
            f"the draft model has {draft.n_vocab} tokens and the model {target.n_vocab}: choose a draft of the same "
            "family (English-only or multilingual, large-v3 or earlier)"
        )


class GpuDraft:
    def __init__(
        self,
        checkpoint: Checkpoint,
        target: Checkpoint,
        tokenizer: Tokenizer,
        state: GpuState,
        dtype: torch.dtype,
        *,
        max_windows: int,
        fp8: bool,
    ) -> None:
        dims, device, n_slots = checkpoint.dims, state.device, state.pad_slot
        require_same_vocabulary(dims, target.dims)
        network = Whisper.from_checkpoint(checkpoint, device, dtype)
        make_contiguous(network)
        # Its proposals may have other bits alone: they do not decide the text.
        self._decoder, self._state = GpuDecoder(network.decoder, fp8=fp8, is_invariant=False), state
        self._kv_cache = GpuKVCache(dims, n_slots, device, dtype, fp8=fp8)
        self._prefill = GpuPrefill(self._decoder, tokenizer, dims, self._kv_cache, state)
        self._int_state, self._float_state = torch.zeros_like(state.int_state), torch.zeros_like(state.float_state)
        self._decode = decode_state(self._int_state, self._float_state, dims.n_text_ctx)
        self._all_rows = torch.arange(n_slots, dtype=torch.int32, device=device)
        self.encode: GpuEncode | None = None
        if not has_same_encoder(checkpoint, target):
            self.encode = GpuEncode(GpuEncoder(network.encoder, fp8=fp8), dims.n_mels, max_windows, device)

    def prefill(self, starts: Sequence[PrefillInput], prompts: Sequence[list[int]], features: Sequence[Tensor]) -> None:
        """Write the K/V of new windows and their prompts."""
        self._prefill(starts, prompts, features)

    def copy_prompts(self, source_slots: Tensor, slots: Tensor, n_positions: int) -> None:
        self._kv_cache.copy(source_slots, slots, n_positions)

    def propose(self, slots: Tensor, audio_slots: Tensor, n_drafts: int) -> None:
        """Write `n_drafts` proposed tokens of each row to the state's drafts: part of a graph.

        The first pass takes two tokens: the one before the newest may have been drafted and never run.
        """
        self._int_state.copy_(self._state.int_state)
        self._float_state.copy_(self._state.float_state)
        decoder, state = self._decoder, self._state
        for index in range(n_drafts):
            is_first = index == 0
            x, positions = embed(self._decode, slots, decoder.embedding, decoder.positions, with_previous=is_first)
            states = decoder(x, TokenRows(slots, audio_slots, positions), self._kv_cache)
            logits = decoder.logits(states[1::2].contiguous() if is_first else states)
            sample(logits, self._all_rows[: len(slots)], slots, state.sampling, self._decode, state.vocabulary)
            state.decode.drafts[index].copy_(self._decode.next_tokens)
