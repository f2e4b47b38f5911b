"""What sampling reads and writes: the vocabulary, the options of the window in each slot, and its decoding progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Vocabulary:
    n_tokens: int
    eot: int
    space: int
    timestamp_begin: int
    starts_word: Tensor  # [tokens]: whether each does not continue the word before it


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of the window in each slot: [slots], `banned_tokens` [slots, tokens]."""

    suppress_blank: Tensor
    banned_tokens: Tensor
    timestamps: Tensor
    max_first_timestamp: Tensor
    temperatures: Tensor
    seeds: Tensor
    max_tokens: Tensor
    is_host_sampled: Tensor  # a beam search: skipped here
    hotwords: Tensor  # the address of a hotword table; 0: none
    hotword_boosts: Tensor
    hotword_tables: Mapping[int, Tensor]  # by slot: keeps the tables alive


@dataclass(frozen=True)
class DecodeState:
    """Decoding progress of each slot: [slots], `recent` [4, slots], `texts` and `logprobs` [slots, positions]."""

    recent: Tensor  # last token, the one before it, last timestamp, number of sampled tokens
    lengths: Tensor  # prompt and next token included
    next_tokens: Tensor
    hotword_nodes: Tensor
    forks: Tensor  # [11, slots]: where a boosted token was taken: the other token (-1: nowhere), the state before it,
    # and the tokens that come after the other one
    fork_scores: Tensor  # [5, slots]: the sum of log-probabilities there, and those of the other tokens
    texts: Tensor
    logprobs: Tensor  # of each token in `texts`
    n_text: Tensor
    sum_logprobs: Tensor
    is_done: Tensor
    prompt_ends: Tensor  # last tokens of the prompts
    drafts: Tensor  # [drafts, slots]: proposed tokens behind the next one
    is_paused: Tensor  # a drafted token was not the one that was sampled: later tokens of the pass are void
    n_compared: Tensor  # drafted tokens that were verified
    n_accepted: Tensor
    forced_acceptance: Tensor  # [1]: a percentage to accept by chance, to measure speed with random weights; -1: none
