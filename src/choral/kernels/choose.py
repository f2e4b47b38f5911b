"""Whisper's rules, the choice of the next token and what follows from it, in one pass over the logits of each row.

Programs look at some tokens of a row each, then one a row decides on what they found. The rules are those of
`engine.rules` and the draws those of `engine.sampler`, which rows that a host decides on (beams) still go through; the
tests compare all three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.launch import chained, has_kernels, require
from choral.kernels.noise import gumbel

BLOCK_TOKENS = 4096


@dataclass(frozen=True)
class Vocabulary:
    n_tokens: int
    eot: int
    space: int
    timestamp_begin: int


@dataclass(frozen=True)
class Wanted:
    """What the windows in the slots asked for; each [slots], and the tokens they never want [slots, tokens]."""

    suppress_blank: Tensor
    unwanted: Tensor
    timestamps: Tensor
    latest_first: Tensor
    temperatures: Tensor
    seeds: Tensor
    max_tokens: Tensor
    is_by_host: Tensor  # not decided here


@dataclass(frozen=True)
class Progress:
    """How far each slot got; each [slots], but for `recent` [4, slots], `texts` and `logprobs` [slots, positions]."""

    recent: Tensor  # last token, the one before, last timestamp, how many were sampled
    lengths: Tensor  # with the prompt and the token that is fed next
    next_tokens: Tensor
    texts: Tensor
    logprobs: Tensor  # of each token of the text
    n_text: Tensor
    sum_logprobs: Tensor
    is_done: Tensor


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _gumbel(seed, step, tokens):
    """As `noise.gumbel`: a hash of seed, step and token."""
    counters = (step * 1048576 + tokens).to(tl.uint64)
    bits = _mixed(_mixed(seed.to(tl.uint64)) + counters * 0x9E3779B97F4A7C15)
    uniform = (bits & 0xFFFFFFFF).to(tl.float32) * 2.3283064365386963e-10
    uniform = tl.minimum(tl.maximum(uniform, 2.3283064365386963e-10), 0.9999999403953552)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _is_banned(
    tokens, slot, suppress_blank, timestamps, latest_first, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """Whisper's rules on blanks and timestamps, as `engine.rules` explains them."""
    last, before_last = tl.load(recent + slot), tl.load(recent + n_slots + slot)
    last_timestamp, n_sampled = tl.load(recent + 2 * n_slots + slot), tl.load(recent + 3 * n_slots + slot)
    has_times = tl.load(timestamps + slot) != 0
    is_time, is_first = tokens >= BEGIN, n_sampled == 0
    after_time = has_times & (last >= BEGIN)
    is_pair = (before_last >= BEGIN) | (n_sampled < 2)
    is_start = (last >= BEGIN) & (before_last < BEGIN) & (n_sampled >= 2)
    earliest = last_timestamp + tl.where(is_start, 0, 1)
    is_late = is_first & (tokens > tl.load(latest_first + slot))
    banned = is_first & (tl.load(suppress_blank + slot) != 0) & ((tokens == SPACE) | (tokens == EOT))
    banned |= is_time & has_times & ((after_time & is_pair) | (tokens < earliest) | is_late)
    banned |= (tokens < EOT) & after_time & (is_pair == 0)
    banned |= (is_time == 0) & has_times & is_first
    return banned


@triton.jit
def _found(scores, compared, start, out, stride):
    """Among some tokens: the largest score, the sum of their exponentials measured from it, and the best to take."""
    top = tl.max(scores, axis=0)
    from_top = tl.exp(scores - tl.where(top == -float("inf"), 0.0, top))  # where all is forbidden there is none
    best, index = tl.max(compared, axis=0, return_indices=True)
    tl.store(out, top)
    tl.store(out + stride, tl.sum(from_top, axis=0))
    tl.store(out + 2 * stride, best)
    tl.store(out + 3 * stride, (start + index).to(tl.float32))  # exact: there are fewer than 2**24


@triton.jit
def _merged(found, stride, default, PADDED: tl.constexpr):
    """The same among all tokens, of what was found among some; the default where all is forbidden."""
    parts = tl.arange(0, PADDED)
    is_part = parts < stride
    tops = tl.load(found + parts, mask=is_part, other=-float("inf"))
    sums = tl.load(found + stride + parts, mask=is_part, other=0.0)
    bests = tl.load(found + 2 * stride + parts, mask=is_part, other=-float("inf"))
    tokens = tl.load(found + 3 * stride + parts, mask=is_part, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - tl.where(top == -float("inf"), 0.0, top)), axis=0)
    best, index = tl.max(bests, axis=0, return_indices=True)
    token = tl.sum(tl.where(parts == index, tokens, 0.0), axis=0).to(tl.int32)
    return top, total, best, tl.where(best == -float("inf"), default, token)


@triton.jit
def _move_on(
    token, logprob, slot, max_tokens, recent, lengths, next_tokens, texts, logprobs, n_text, is_done, n_slots,
    EOT: tl.constexpr, BEGIN: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """What follows from a token: the text grows, or has ended."""
    last, last_timestamp = tl.load(recent + slot), tl.load(recent + 2 * n_slots + slot)
    n_sampled = tl.load(recent + 3 * n_slots + slot) + 1
    length, n_written = tl.load(lengths + slot), tl.load(n_text + slot)
    is_end = token == EOT
    if is_end == 0:
        tl.store(texts + slot * POSITIONS + n_written, token.to(texts.dtype.element_ty))
        tl.store(logprobs + slot * POSITIONS + n_written, logprob)
        tl.store(n_text + slot, n_written + 1)
    tl.store(recent + slot, token.to(recent.dtype.element_ty))
    tl.store(recent + n_slots + slot, last)
    tl.store(recent + 2 * n_slots + slot, tl.where(token >= BEGIN, token.to(last.dtype), last_timestamp))
    tl.store(recent + 3 * n_slots + slot, n_sampled)
    tl.store(next_tokens + slot, token.to(next_tokens.dtype.element_ty))
    tl.store(lengths + slot, length + 1)
    is_over = is_end | (length >= POSITIONS) | (n_sampled >= tl.load(max_tokens + slot))
    tl.store(is_done + slot, is_over.to(is_done.dtype.element_ty))


@triton.jit
def _survey(
    logits, logit_rows, row_slots, found,
    suppress_blank, unwanted, timestamps, latest_first, temperatures, seeds, is_by_host,
    recent, is_done, n_slots, STRIDE: tl.constexpr, VOCAB: tl.constexpr,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    part, row = tl.program_id(0), tl.program_id(1)
    slot, logit_row = tl.load(row_slots + row).to(tl.int64), tl.load(logit_rows + row).to(tl.int64)
    if (tl.load(is_done + slot) != 0) | (tl.load(is_by_host + slot) != 0):
        return
    start = part * BLOCK
    tokens = start + tl.arange(0, BLOCK)
    is_token, is_time = tokens < VOCAB, tokens >= BEGIN
    banned = tl.load(unwanted + slot * VOCAB + tokens, mask=is_token, other=1) != 0
    banned |= _is_banned(tokens, slot, suppress_blank, timestamps, latest_first, recent, n_slots, EOT, SPACE, BEGIN)
    temperature, seed = tl.load(temperatures + slot), tl.load(seeds + slot)
    n_sampled = tl.load(recent + 3 * n_slots + slot)
    if PDL:
        tl.extra.cuda.gdc_wait()
    scores = tl.load(logits + logit_row * STRIDE + tokens, mask=is_token, other=-float("inf"))
    scores = tl.where(banned, -float("inf"), scores)
    compared = scores
    if temperature > 0:
        compared = scores / temperature + _gumbel(seed, n_sampled, tokens)
    out, nothing = found + row * (8 * PARTS) + part, -float("inf")
    _found(tl.where(is_time, nothing, scores), tl.where(is_time, nothing, compared), start, out, PARTS)
    _found(tl.where(is_time, scores, nothing), tl.where(is_time, compared, nothing), start, out + 4 * PARTS, PARTS)


@triton.jit
def _decide(
    logits, logit_rows, row_slots, found,
    timestamps, max_tokens, is_by_host, recent, lengths, next_tokens, texts, logprobs, n_text, sum_logprobs, is_done,
    n_slots,
    STRIDE: tl.constexpr, EOT: tl.constexpr, BEGIN: tl.constexpr,
    POSITIONS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, logit_row = tl.load(row_slots + row).to(tl.int64), tl.load(logit_rows + row).to(tl.int64)
    if (tl.load(is_done + slot) != 0) | (tl.load(is_by_host + slot) != 0):
        return
    if PDL:
        tl.extra.cuda.gdc_wait()
    own = found + row * (8 * PARTS)
    text_top, text_sum, text_best, text_token = _merged(own, PARTS, EOT, PADDED)
    time_top, time_sum, time_best, time_token = _merged(own + 4 * PARTS, PARTS, BEGIN, PADDED)
    time_total = time_top + tl.log(time_sum)
    is_time_only = (tl.load(timestamps + slot) != 0) & (time_total > text_top)
    top = tl.maximum(text_top, time_top)
    total = top + tl.log(text_sum * tl.exp(text_top - top) + time_sum * tl.exp(time_top - top))
    total = tl.where(is_time_only, time_total, total)
    token = tl.where(is_time_only | (time_best > text_best), time_token, text_token)
    logprob = tl.load(logits + logit_row * STRIDE + token) - total
    tl.store(sum_logprobs + slot, tl.load(sum_logprobs + slot) + logprob)
    _move_on(
        token, logprob, slot, max_tokens, recent, lengths, next_tokens, texts, logprobs, n_text, is_done, n_slots,
        EOT, BEGIN, POSITIONS,
    )  # fmt: skip


def choose(
    logits: Tensor,  # [logit rows, tokens], float32
    logit_rows: Tensor,  # [rows]: which of them each row looks at
    row_slots: Tensor,  # [rows]
    wanted: Wanted,
    progress: Progress,
    vocabulary: Vocabulary,
) -> None:
    """Decides on the next token of every row that is not done, and moves it on."""
    if not has_kernels(logits):
        reference(logits, logit_rows, row_slots, wanted, progress, vocabulary)
        return
    n_slots, n_positions = progress.texts.shape
    require(logits.stride(1) == 1 and logits.shape[1] == vocabulary.n_tokens, "logits of all tokens side by side")
    require(wanted.unwanted.shape == (n_slots, vocabulary.n_tokens) and wanted.unwanted.is_contiguous(), "unwanted")
    require(progress.recent.shape == (4, n_slots) and progress.recent.is_contiguous(), "recent tokens of all slots")
    n_rows, n_parts = len(row_slots), triton.cdiv(vocabulary.n_tokens, BLOCK_TOKENS)
    found = torch.empty(n_rows, 8, n_parts, device=logits.device)
    stride, ends = logits.stride(0), {"EOT": vocabulary.eot, "BEGIN": vocabulary.timestamp_begin}
    _survey[n_parts, n_rows](
        logits, logit_rows, row_slots, found,
        wanted.suppress_blank, wanted.unwanted, wanted.timestamps, wanted.latest_first, wanted.temperatures,
        wanted.seeds, wanted.is_by_host, progress.recent, progress.is_done, n_slots,
        STRIDE=stride, VOCAB=vocabulary.n_tokens, SPACE=vocabulary.space, **ends,
        BLOCK=BLOCK_TOKENS, PARTS=n_parts, num_warps=4, **chained(logits),
    )  # fmt: skip
    _decide[(n_rows,)](
        logits, logit_rows, row_slots, found, wanted.timestamps, wanted.max_tokens, wanted.is_by_host,
        progress.recent, progress.lengths, progress.next_tokens, progress.texts, progress.logprobs, progress.n_text,
        progress.sum_logprobs, progress.is_done, n_slots,
        STRIDE=stride, **ends, POSITIONS=n_positions,
        PARTS=n_parts, PADDED=triton.next_power_of_2(n_parts), num_warps=1, **chained(logits),
    )  # fmt: skip


def reference(
    logits: Tensor, logit_rows: Tensor, row_slots: Tensor, wanted: Wanted, progress: Progress, vocabulary: Vocabulary
) -> None:
    """The same with torch, in float32, for rows that are not done."""
    is_open = (progress.is_done[row_slots.long()] == 0) & (wanted.is_by_host[row_slots.long()] == 0)
    slots = row_slots.long()[is_open]
    scores = logits[logit_rows.long()[is_open]].clone()
    last, _, last_time, n_sampled = progress.recent[:, slots]
    allowed = _allowed(scores, slots, wanted, progress, vocabulary)
    scores.masked_fill_(~allowed, -torch.inf)
    times, text = scores[:, vocabulary.timestamp_begin :], scores[:, : vocabulary.timestamp_begin]
    is_time = (wanted.timestamps[slots] != 0) & (times.logsumexp(-1) > text.amax(-1))
    text.masked_fill_(is_time[:, None], -torch.inf)

    temperatures = wanted.temperatures[slots, None]
    noise = gumbel(wanted.seeds[slots], n_sampled, vocabulary.n_tokens)
    compared = torch.where(temperatures > 0, scores / temperatures.clamp(min=1e-9) + noise, scores)
    tokens = compared.argmax(-1)
    logprobs = scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1)
    progress.sum_logprobs[slots] += logprobs

    is_end = tokens == vocabulary.eot
    n_text, lengths = progress.n_text[slots], progress.lengths[slots]
    progress.texts[slots[~is_end], n_text[~is_end].long()] = tokens[~is_end].to(progress.texts.dtype)
    progress.logprobs[slots[~is_end], n_text[~is_end].long()] = logprobs[~is_end]
    progress.n_text[slots] = n_text + (~is_end).to(n_text.dtype)
    is_timestamp = tokens >= vocabulary.timestamp_begin
    newest = [tokens, last, torch.where(is_timestamp, tokens, last_time), n_sampled + 1]
    progress.recent[:, slots] = torch.stack(newest).to(progress.recent.dtype)
    progress.next_tokens[slots] = tokens.to(progress.next_tokens.dtype)
    progress.lengths[slots] = lengths + 1
    is_over = is_end | (lengths >= progress.texts.shape[1]) | (n_sampled + 1 >= wanted.max_tokens[slots])
    progress.is_done[slots] = is_over.to(progress.is_done.dtype)


def _allowed(scores: Tensor, slots: Tensor, wanted: Wanted, progress: Progress, vocabulary: Vocabulary) -> Tensor:
    last, before_last, last_time, n_sampled = progress.recent[:, slots, None]
    begin, eot = vocabulary.timestamp_begin, vocabulary.eot
    tokens = torch.arange(vocabulary.n_tokens, device=scores.device)
    is_time, is_first = tokens >= begin, n_sampled == 0
    has_times = wanted.timestamps[slots, None] != 0
    after_time = has_times & (last >= begin)
    is_pair = (before_last >= begin) | (n_sampled < 2)
    is_start = (last >= begin) & (before_last < begin) & (n_sampled >= 2)
    earliest = torch.where(is_start, last_time, last_time + 1)
    banned = wanted.unwanted[slots] != 0
    banned |= is_first & (wanted.suppress_blank[slots, None] != 0) & ((tokens == vocabulary.space) | (tokens == eot))
    banned |= is_time & has_times & ((after_time & is_pair) | (tokens < earliest))
    banned |= is_time & has_times & is_first & (tokens > wanted.latest_first[slots, None])
    banned |= (tokens < eot) & after_time & ~is_pair
    banned |= ~is_time & has_times & is_first
    return ~banned
