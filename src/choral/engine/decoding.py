"""One window while it is decoded: its rules, its search, its memories. Many of them share each step of the network."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from choral.engine.rules import History, rules_for
from choral.engine.search import Candidate, best_candidate, search_for
from choral.engine.window import Decode, WindowAudio
from choral.model.decoder import Group
from choral.model.tokenizer import Tokenizer


class Decoding:
    """Holds `logits` of its rows between steps; `choose` turns them into the next `tokens`, until it is done."""

    def __init__(
        self,
        work: Decode,
        audio: WindowAudio,
        tokenizer: Tokenizer,
        prompt: Group,
        logits: Tensor,
        no_speech_prob: float,
        n_text_ctx: int,
    ) -> None:
        device = logits.device
        self.work, self.no_speech_prob = work, no_speech_prob
        self.search = search_for(work, tokenizer.eot, window_seed(work, audio), device)
        self.rules = rules_for(work, tokenizer, logits.shape[-1], device)
        self.history = History.empty(self.search.n_rows, device)
        self.timestamp_begin, self.n_text_ctx = tokenizer.timestamp_begin, n_text_ctx
        self.group = Group(prompt.memory.repeated(self.search.n_rows), prompt.heard)
        self.logits = logits.repeat_interleave(self.search.n_rows, dim=0)
        self.tokens: Tensor = logits.new_empty(0, dtype=torch.long)
        self.max_tokens = work.max_tokens or n_text_ctx // 2

    def choose(self) -> bool:
        """Chooses the next token of every row; True when there is nothing more to decode."""
        for rule in self.rules:
            rule.apply(self.logits, self.history)
        choice = self.search.advance(self.logits)
        if choice.is_complete or self.group.memory.length >= self.n_text_ctx:
            return True
        if choice.source_rows is not None:
            self.group.memory.select_rows(choice.source_rows)
            self.history.select_rows(choice.source_rows)
        self.history.append(choice.tokens, self.timestamp_begin)
        self.tokens = choice.tokens
        return self.history.n_sampled >= self.max_tokens

    def best(self) -> Candidate:
        return best_candidate(self.search, self.work.length_penalty)


def window_seed(work: Decode, audio: WindowAudio) -> int:
    """A seed of the window's own: its samples do not depend on what else was decoded, or in which order."""
    digest = hashlib.blake2b(audio.key, digest_size=8)
    digest.update(repr((work.seed, work.temperature, work.prompt, work.prefix)).encode())
    return int.from_bytes(digest.digest(), "big") >> 1
