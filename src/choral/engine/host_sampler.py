"""Sampling driven by the host: rules and token picks run on the device for all rows, each window's search in Python.

A row is greedy (temperature 0), drawn from the tempered distribution, or a beam that takes the `top_k` tokens. State
changes at the end of a step, in writes that allocate nothing: a step that runs out of memory can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from choral.engine.decoding import Advanced, Decoding, Fork
from choral.engine.hotword_tables import HotwordTables
from choral.engine.hotword_trie import ROOT
from choral.engine.rules import Rules
from choral.engine.runner import PrefillInput
from choral.engine.search import BeamSearch, Draw
from choral.engine.steps import Outcome
from choral.kernels.gumbel import gumbel
from choral.kernels.hotword_table import N_TRIED
from choral.model.dims import ModelDims
from choral.model.kv_cache import KVCache
from choral.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class PickedToken:
    token: int
    logprob: float


@dataclass(frozen=True)
class Picked:
    """One token per row."""

    tokens: list[int]
    logprobs: list[float]

    def at(self, row: int) -> PickedToken:
        return PickedToken(self.tokens[row], self.logprobs[row])


@dataclass(frozen=True)
class TopK:
    """The most likely tokens of each row, best first."""

    tokens: list[list[int]]
    logprobs: list[list[float]]

    def at(self, row: int) -> list[PickedToken]:
        return list(map(PickedToken, self.tokens[row], self.logprobs[row]))


class HostSampler:
    def __init__(
        self, tokenizer: Tokenizer, dims: ModelDims, kv_cache: KVCache, n_slots: int, compute_type: str
    ) -> None:
        self._kv_cache, self._device = kv_cache, kv_cache.keys.device
        self._tokenizer, self._n_text_ctx, self._compute_type = tokenizer, dims.n_text_ctx, compute_type
        self._rules = Rules(tokenizer, dims.n_vocab, n_slots, self._device)
        self._hotwords = HotwordTables(self._device)

    def begin(self, start: PrefillInput, n_prompt: int, no_speech_prob: float) -> Decoding:
        """Set up a window after its prefill; all its beams or samples continue the one prompt."""
        self._rules.begin(start.slots, start.params)
        if len(start.slots) > 1:
            others = torch.tensor(start.slots[1:], device=self._device)
            self._kv_cache.copy(torch.full_like(others, start.slots[0]), others, n_prompt)
        return Decoding(start, n_prompt, no_speech_prob, self._tokenizer, self._n_text_ctx)

    def next_tokens(self, slots: Tensor) -> Tensor:
        """The decoder's input in these slots, as `sample` has set it."""
        return self._rules.history.last(slots)

    def sample(self, decodings: Sequence[Decoding], logits: Tensor) -> list[Outcome]:
        """Sample the next token of every row and set it as the input of the next step."""
        slots = torch.tensor([slot for decoding in decodings for slot in decoding.row_slots], device=self._device)
        self._rules.apply(logits, slots)
        outcomes: list[Outcome] = []
        inputs: list[tuple[int, int, int]] = []  # source slot, slot, token
        returns: dict[int, Tensor] = {}  # history by row of `inputs`
        advances = self._advance(decodings, logits)
        for decoding, advanced in zip(decodings, advances, strict=True):
            outcomes.append(decoding.outcome(advanced, self._compute_type))
            if not decoding.is_last(advanced):
                if advanced.returned_from is not None:
                    returns[len(inputs)] = advanced.returned_from.recent
                row_slots = decoding.slots
                inputs += [(row_slots[next.source_row], row_slots[next.row], next.token) for next in advanced.continued]
        if inputs:
            self._set_inputs(inputs, returns, max(decoding.length for decoding in decodings))
        for decoding, advanced in zip(decodings, advances, strict=True):
            decoding.apply(advanced)
        return outcomes

    def _advance(self, decodings: Sequence[Decoding], logits: Tensor) -> list[Advanced]:
        """Advance a copy of each window's search with the tokens picked for its rows."""
        beams = [decoding.search for decoding in decodings if isinstance(decoding.search, BeamSearch)]
        bounds = np.cumsum([0, *(len(decoding.search.rows) for decoding in decodings)])
        boosted = self._hotwords.boosted(logits, [match for decoding in decodings for match in decoding.matches])
        picked = pick(logits, [draw for decoding in decodings for draw in decoding.draws()])
        top = top_of_beams(logits, max(search.n_top for search in beams), boosted) if beams else None
        preferred = None if boosted is None else top_k(logits, N_TRIED, boosted)
        advances = []
        for decoding, start, stop in zip(decodings, bounds[:-1], bounds[1:], strict=True):
            if isinstance(decoding.search, BeamSearch):
                assert top is not None
                n = decoding.search.n_top * (1 if boosted is None else 2)
                tokens = [row[:n] for row in top.tokens[start:stop]]
                advances.append(decoding.advanced(tokens, [row[:n] for row in top.logprobs[start:stop]]))
            elif preferred is not None and decoding.matches[0] is not None:
                advances.append(self._advance_greedy(decoding, picked.at(start), preferred.at(start)))
            else:
                advances.append(decoding.advanced(picked.tokens[start:stop], picked.logprobs[start:stop]))
        return advances

    def _advance_greedy(self, decoding: Decoding, plain: PickedToken, boosted: list[PickedToken]) -> Advanced:
        """Take the best boosted token, or go back to where a hotword was begun that does not become whole."""
        (match,) = decoding.matches
        assert match is not None
        best = boosted[0]
        if decoding.fork is not None and match.fails(best.token):
            return replace(decoding.fork.other, returned_from=decoding.fork, fork=decoding.fork.next)
        after = match.after(best.token)
        fork = None if after.node == ROOT or after.is_beginning else decoding.fork
        if fork is None and best.token != plain.token:
            tokens = [each.token for each in boosted]
            others = boosted[1 : tokens.index(plain.token)] if plain.token in tokens else boosted[1:]
            for other in reversed([*others, plain]):
                fork = self._fork(decoding, other, fork)
        return replace(decoding.advanced([best.token], [best.logprob]), fork=fork)

    def _fork(self, decoding: Decoding, other: PickedToken, following: Fork | None) -> Fork:
        slot = torch.tensor(decoding.slots, device=self._device)
        recent = self._rules.history.extended(slot, torch.tensor([other.token], device=self._device))
        return Fork(decoding.advanced([other.token], [other.logprob]), recent, following)

    def _set_inputs(self, inputs: Sequence[tuple[int, int, int]], returns: dict[int, Tensor], max_length: int) -> None:
        history = self._rules.history
        rows = torch.tensor(inputs, device=self._device)
        recent = history.extended(rows[:, 0], rows[:, 2])
        for row, earlier in returns.items():
            recent[:, row] = earlier[:, 0]
        moved = rows[[source != slot for source, slot, _ in inputs]]
        # Nothing below may fail once the K/V have moved: moving them twice would mix up the beams.
        if len(moved):
            self._kv_cache.copy(moved[:, 0], moved[:, 1], max_length)
        history.set(rows[:, 1], recent)


def pick(logits: Tensor, draws: Sequence[Draw]) -> Picked:
    """One token per row with its log-probability, in one read-back."""
    tokens = logits.argmax(dim=-1)
    sampled = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if sampled:
        rows = torch.tensor(sampled, device=logits.device)
        temperatures = torch.tensor([[draws[row].temperature] for row in sampled], device=logits.device)
        seeds, steps = torch.tensor([[draws[row].seed, draws[row].step] for row in sampled], device=logits.device).t()
        noise = gumbel(seeds, steps, logits.shape[-1])
        tokens[rows] = (logits[rows] / temperatures + noise).argmax(dim=-1)
    return read_back(logits, tokens)


def read_back(logits: Tensor, tokens: Tensor) -> Picked:
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    token_list, logprob_list = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return Picked([int(token) for token in token_list], logprob_list)


def top_of_beams(logits: Tensor, k: int, boosted: Tensor | None) -> TopK:
    """The most likely tokens; with hotwords, each is followed by one of the best boosted: none may displace it."""
    if boosted is None:
        return top_k(logits, k)
    logprobs = torch.log_softmax(logits, dim=-1)
    tokens = torch.stack([logprobs.topk(k).indices, boosted.topk(k).indices], dim=2).flatten(1)
    return TopK(tokens.tolist(), logprobs.gather(1, tokens).tolist())


def top_k(logits: Tensor, k: int, boosted: Tensor | None = None) -> TopK:
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(k)
    tokens, values = best.indices, best.values
    if boosted is not None:
        tokens = boosted.topk(k).indices
        values = logprobs.gather(1, tokens)
    return TopK(tokens.tolist(), values.tolist())
