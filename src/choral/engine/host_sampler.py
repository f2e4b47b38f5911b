"""What is chosen for the rows of a step where the host decides: rules, picking, and each window's search.

The rules and the picking run on the device for all rows at once; the searches are plain Python and see one read-back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from choral.engine.decoding import Decoding, device_failed
from choral.engine.rules import Rules
from choral.engine.runner import PrefillInput
from choral.engine.sampler import pick, top_k
from choral.engine.search import BeamSearch, Next
from choral.engine.steps import Failed, InProgress, Outcome
from choral.model.dims import ModelDims
from choral.model.kv_cache import KVCache
from choral.model.tokenizer import Tokenizer


class HostSampler:
    def __init__(self, tokenizer: Tokenizer, dims: ModelDims, memory: KVCache, n_slots: int, compute_type: str) -> None:
        self._memory, self._device = memory, memory.keys.device
        self._eot, self._n_text_ctx, self._compute_type = tokenizer.eot, dims.n_text_ctx, compute_type
        self._rules = Rules(tokenizer, dims.n_vocab, n_slots, self._device)
        self.next_tokens = torch.zeros(n_slots, dtype=torch.long, device=self._device)  # what each slot is fed

    def begin(self, start: PrefillInput, n_prompt: int, no_speech_prob: float) -> Decoding:
        """A window takes its places; its beams or samples all start from the one prompt."""
        self._rules.begin(start.slots, start.params)
        if len(start.slots) > 1:
            others = torch.tensor(start.slots[1:], device=self._device)
            self._memory.copy(torch.full_like(others, start.slots[0]), others, n_prompt)
        return Decoding(start, n_prompt, no_speech_prob, self._eot, self._n_text_ctx)

    def sample(self, decodings: Sequence[Decoding], logits: Tensor) -> list[Outcome]:
        """The next token of every row, by its window's rules and search; what was chosen is fed in the next step."""
        slots = torch.tensor([slot for decoding in decodings for slot in decoding.row_slots], device=self._device)
        self._rules.apply(logits, slots)
        outcomes: list[Outcome] = []
        fed: list[tuple[int, int, int]] = []  # source slot, slot, token
        for decoding, going_on in zip(decodings, self._advance(decodings, logits), strict=True):
            is_going_on = decoding.moved_on(going_on)
            outcomes.append(decoding.outcome(is_going_on=is_going_on, compute_type=self._compute_type))
            if is_going_on:
                places = decoding.slots
                fed += [(places[next.source_row], places[next.row], next.token) for next in going_on]
        try:
            if fed:
                self._feed(fed, max(decoding.length for decoding in decodings))
        except RuntimeError as error:  # memory: their searches have moved on, and tried again they would skip a token
            failure = device_failed(error)
            return [Failed(failure) if isinstance(outcome, InProgress) else outcome for outcome in outcomes]
        return outcomes

    def _advance(self, decodings: Sequence[Decoding], logits: Tensor) -> list[list[Next]]:
        """Tells each search what was picked for its rows."""
        beams = [decoding.search for decoding in decodings if isinstance(decoding.search, BeamSearch)]
        borders = np.cumsum([0, *(len(decoding.search.rows) for decoding in decodings)])
        draws = [draw for decoding in decodings for draw in decoding.draws()]
        picked = pick(logits, draws)
        best = top_k(logits, max(search.n_looked_at for search in beams)) if beams else None
        advanced = []
        for decoding, start, stop in zip(decodings, borders[:-1], borders[1:], strict=True):
            search = decoding.search
            if isinstance(search, BeamSearch):
                assert best is not None
                n = search.n_looked_at
                tokens = [row[:n] for row in best.tokens[start:stop]]
                advanced.append(search.advance(tokens, [row[:n] for row in best.logprobs[start:stop]]))
            else:
                advanced.append(search.advance(picked.tokens[start:stop], picked.logprobs[start:stop]))
        return advanced

    def _feed(self, fed: Sequence[tuple[int, int, int]], longest: int) -> None:
        numbers = torch.tensor(fed, device=self._device)
        moved = numbers[[source != slot for source, slot, _ in fed]]
        if len(moved):
            self._memory.copy(moved[:, 0], moved[:, 1], longest)
            self._rules.history.copy(moved[:, 0], moved[:, 1])
        self.next_tokens[numbers[:, 1]] = numbers[:, 2]
        self._rules.history.append(numbers[:, 1], numbers[:, 2])
