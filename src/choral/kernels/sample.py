"""Sampling on the GPU: Whisper's decoding rules, the choice of the next token, and the update of each slot's state.

`_scan_blocks` reduces each block of a row's logits, `_select_tokens` merges the blocks and appends a token to each row.
Tests compare the rules with `engine.rules` and the draws with `engine.host_sampler`, which beam search uses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.decode_state import DecodeState, SamplingParams, Vocabulary
from choral.kernels.gumbel import gumbel
from choral.kernels.hotword_step import advance_reference, step_hotword
from choral.kernels.hotword_table import MAX_RETURNS
from choral.kernels.launch import has_kernels, pdl_options, require
from choral.kernels.sampling_rules import gumbel_noise, is_banned

BLOCK_TOKENS, MAX_FORK_RETURNS = 4096, tl.constexpr(MAX_RETURNS)


@triton.jit
def _reduce_block(scores, compared, start, out, stride):
    """Over a block: the maximum, the sum of exponentials relative to it, and the argmax of `compared`."""
    top = tl.max(scores, axis=0)
    from_top = tl.exp(scores - tl.where(top == -float("inf"), 0.0, top))  # every token may be banned
    best, index = tl.max(compared, axis=0, return_indices=True)
    tl.store(out, top)
    tl.store(out + stride, tl.sum(from_top, axis=0))
    tl.store(out + 2 * stride, best)
    tl.store(out + 3 * stride, (start + index).to(tl.float32))  # exact: there are fewer than 2**24


@triton.jit
def _merge_blocks(partials, stride, default, PADDED: tl.constexpr):
    """The same over the whole row; `default` is the token where all are banned."""
    parts = tl.arange(0, PADDED)
    is_part = parts < stride
    tops = tl.load(partials + parts, mask=is_part, other=-float("inf"))
    sums = tl.load(partials + stride + parts, mask=is_part, other=0.0)
    bests = tl.load(partials + 2 * stride + parts, mask=is_part, other=-float("inf"))
    tokens = tl.load(partials + 3 * stride + parts, mask=is_part, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - tl.where(top == -float("inf"), 0.0, top)), axis=0)
    best, index = tl.max(bests, axis=0, return_indices=True)
    token = tl.sum(tl.where(parts == index, tokens, 0.0), axis=0).to(tl.int32)
    return top, total, best, tl.where(best == -float("inf"), default, token)


@triton.jit
def _append_token(
    token, logprob, last, last_timestamp, n_sampled, length, n_written,
    slot, max_tokens, recent, lengths, next_tokens, texts, logprobs, n_text, is_done, n_slots,
    EOT: tl.constexpr, BEGIN: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Append a token to its slot, or mark the slot done."""
    is_end = token == EOT
    if is_end == 0:
        tl.store(texts + slot * POSITIONS + n_written, token.to(texts.dtype.element_ty))
        tl.store(logprobs + slot * POSITIONS + n_written, logprob)
    tl.store(n_text + slot, n_written + tl.where(is_end, 0, 1))
    tl.store(recent + slot, token.to(recent.dtype.element_ty))
    tl.store(recent + n_slots + slot, last)
    tl.store(recent + 2 * n_slots + slot, tl.where(token >= BEGIN, token.to(last.dtype), last_timestamp))
    tl.store(recent + 3 * n_slots + slot, n_sampled + 1)
    tl.store(next_tokens + slot, token.to(next_tokens.dtype.element_ty))
    tl.store(lengths + slot, length + 1)
    is_over = is_end | (length >= POSITIONS) | (n_sampled + 1 >= tl.load(max_tokens + slot))
    tl.store(is_done + slot, is_over.to(is_done.dtype.element_ty))


@triton.jit
def _scan_blocks(
    logits, logit_rows, row_slots, partials,
    suppress_blank, banned_tokens, timestamps, max_first_timestamp, temperatures, seeds, is_host_sampled,
    recent, is_done, is_paused, n_slots, STRIDE: tl.constexpr, VOCAB: tl.constexpr,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
    TOKENS: tl.constexpr, TOKEN: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    part, row = tl.program_id(0), tl.program_id(1)
    slot, logit_row = tl.load(row_slots + row).to(tl.int64), tl.load(logit_rows + row).to(tl.int64) * TOKENS + TOKEN
    if (tl.load(is_done + slot) != 0) | (tl.load(is_host_sampled + slot) != 0):
        return
    if TOKEN > 0:  # noqa: SIM102 (known when it is compiled)
        if tl.load(is_paused + slot) != 0:
            return
    start = part * BLOCK
    tokens = start + tl.arange(0, BLOCK)
    is_token, is_time = tokens < VOCAB, tokens >= BEGIN
    banned = tl.load(banned_tokens + slot * VOCAB + tokens, mask=is_token, other=1) != 0
    banned |= is_banned(
        tokens, slot, suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN
    )
    temperature, seed = tl.load(temperatures + slot), tl.load(seeds + slot)
    n_sampled = tl.load(recent + 3 * n_slots + slot)
    if PDL:
        tl.extra.cuda.gdc_wait()
    scores = tl.load(logits + logit_row * STRIDE + tokens, mask=is_token, other=-float("inf"))
    scores = tl.where(banned, -float("inf"), scores)
    compared = scores
    if temperature > 0:
        compared = scores / temperature + gumbel_noise(seed, n_sampled, tokens)
    out, nothing = partials + row * (8 * PARTS) + part, -float("inf")
    _reduce_block(tl.where(is_time, nothing, scores), tl.where(is_time, nothing, compared), start, out, PARTS)
    _reduce_block(
        tl.where(is_time, scores, nothing), tl.where(is_time, compared, nothing), start, out + 4 * PARTS, PARTS
    )


@triton.jit
def _select_tokens(
    logits, logit_rows, row_slots, partials,
    suppress_blank, banned_tokens, timestamps, max_first_timestamp, max_tokens, is_host_sampled,
    hotwords, hotword_boosts, hotword_nodes, forks, fork_scores, starts_word,
    recent, lengths, next_tokens, texts, logprobs, n_text, sum_logprobs, is_done,
    drafts, is_paused, n_compared, n_accepted, forced_acceptance, n_slots,
    STRIDE: tl.constexpr, VOCAB: tl.constexpr, EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
    TOKENS: tl.constexpr, TOKEN: tl.constexpr,
    POSITIONS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, logit_row = tl.load(row_slots + row).to(tl.int64), tl.load(logit_rows + row).to(tl.int64) * TOKENS + TOKEN
    if (tl.load(is_done + slot) != 0) | (tl.load(is_host_sampled + slot) != 0):
        return
    if TOKEN > 0:  # noqa: SIM102 (known when it is compiled)
        if tl.load(is_paused + slot) != 0:
            return
    if PDL:
        tl.extra.cuda.gdc_wait()
    row_partials = partials + row * (8 * PARTS)
    text_top, text_sum, text_best, text_token = _merge_blocks(row_partials, PARTS, EOT, PADDED)
    time_top, time_sum, time_best, time_token = _merge_blocks(row_partials + 4 * PARTS, PARTS, BEGIN, PADDED)
    time_total = time_top + tl.log(time_sum)
    is_time_only = (tl.load(timestamps + slot) != 0) & (time_total > text_top)
    top = tl.maximum(text_top, time_top)
    total = top + tl.log(text_sum * tl.exp(text_top - top) + time_sum * tl.exp(time_top - top))
    total = tl.where(is_time_only, time_total, total)
    token = tl.where(is_time_only | (time_best > text_best), time_token, text_token)
    last, last_timestamp = tl.load(recent + slot), tl.load(recent + 2 * n_slots + slot)
    n_sampled, length, n_written = tl.load(recent + 3 * n_slots + slot), tl.load(lengths + slot), tl.load(n_text + slot)
    row_logits, sum_logprob, n_before = logits + logit_row * STRIDE, tl.load(sum_logprobs + slot), n_sampled
    logprob = tl.load(row_logits + token) - total
    address = tl.load(hotwords + slot)
    if (address != 0) & (tl.load(forks + 7 * n_slots + slot) < MAX_FORK_RETURNS):
        table = address.to(tl.pointer_type(tl.int32))
        best = tl.where(is_time_only, float("inf"), tl.maximum(text_best, time_best))
        token, logprob, last, last_timestamp, n_sampled, length, n_written, sum_logprob = step_hotword(
            token, logprob, best, total, last, last_timestamp, n_sampled, length, n_written, sum_logprob,
            table, tl.load(hotword_boosts + slot), hotword_nodes + slot, forks + slot, fork_scores + slot, starts_word,
            row_logits, banned_tokens + slot * VOCAB, slot,
            suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN,
        )  # fmt: skip
    tl.store(sum_logprobs + slot, sum_logprob + logprob)
    _append_token(
        token, logprob, last, last_timestamp, n_sampled, length, n_written,
        slot, max_tokens, recent, lengths, next_tokens, texts, logprobs, n_text, is_done, n_slots,
        EOT, BEGIN, POSITIONS,
    )  # fmt: skip
    if TOKEN < TOKENS - 1:  # the next logits are those behind the drafted token
        is_accepted = (token == tl.load(drafts + TOKEN * n_slots + slot)) & (n_sampled == n_before)
        forced_percent = tl.load(forced_acceptance)
        is_forced = (slot * 7919 + n_sampled * 104729) % 100 < forced_percent
        is_accepted = tl.where(forced_percent >= 0, is_forced, is_accepted)
        tl.store(is_paused + slot, (is_accepted == 0).to(is_paused.dtype.element_ty))
        tl.store(n_compared + slot, tl.load(n_compared + slot) + 1)
        tl.store(n_accepted + slot, tl.load(n_accepted + slot) + is_accepted.to(tl.int64))


def sample(
    logits: Tensor,  # [logit rows * n_tokens, vocabulary], float32
    logit_rows: Tensor,  # [rows]: the row of `logits` each reads
    row_slots: Tensor,  # [rows]
    params: SamplingParams,
    state: DecodeState,
    vocab: Vocabulary,
    *,
    n_tokens: int = 1,
) -> None:
    """Sample the next token of every row that is not done, and update its slot in place.

    With `n_tokens`, each row has logits behind its newest token and behind the drafted ones: tokens are sampled until
    one differs from the draft.
    """
    for token in range(n_tokens):
        if has_kernels(logits):
            _launch(logits, logit_rows, row_slots, params, state, vocab, n_tokens, token)
        else:
            reference(logits, logit_rows, row_slots, params, state, vocab, n_tokens=n_tokens, token=token)


def _launch(
    logits: Tensor, logit_rows: Tensor, row_slots: Tensor, params: SamplingParams, state: DecodeState,
    vocab: Vocabulary, n_tokens: int, token: int,
) -> None:  # fmt: skip
    n_slots, n_positions = state.texts.shape
    require(logits.stride(1) == 1 and logits.shape[1] == vocab.n_tokens, "logits of all tokens side by side")
    banned = params.banned_tokens
    require(banned.shape == (n_slots, vocab.n_tokens) and banned.is_contiguous(), "banned tokens of all slots")
    require(state.recent.shape == (4, n_slots) and state.recent.is_contiguous(), "recent tokens of all slots")
    n_rows, n_parts = len(row_slots), triton.cdiv(vocab.n_tokens, BLOCK_TOKENS)
    partials = torch.empty(n_rows, 8, n_parts, device=logits.device)
    stride, ends = logits.stride(0), {"EOT": vocab.eot, "BEGIN": vocab.timestamp_begin}
    _scan_blocks[n_parts, n_rows](
        logits, logit_rows, row_slots, partials,
        params.suppress_blank, banned, params.timestamps, params.max_first_timestamp, params.temperatures,
        params.seeds, params.is_host_sampled, state.recent, state.is_done, state.is_paused, n_slots,
        STRIDE=stride, VOCAB=vocab.n_tokens, SPACE=vocab.space, **ends,
        TOKENS=n_tokens, TOKEN=token, BLOCK=BLOCK_TOKENS, PARTS=n_parts, num_warps=4, **pdl_options(logits),
    )  # fmt: skip
    _select_tokens[(n_rows,)](
        logits, logit_rows, row_slots, partials,
        params.suppress_blank, banned, params.timestamps, params.max_first_timestamp, params.max_tokens,
        params.is_host_sampled, params.hotwords, params.hotword_boosts, state.hotword_nodes, state.forks,
        state.fork_scores, vocab.starts_word,
        state.recent, state.lengths, state.next_tokens, state.texts, state.logprobs, state.n_text,
        state.sum_logprobs, state.is_done, state.drafts, state.is_paused, state.n_compared, state.n_accepted,
        state.forced_acceptance, n_slots,
        STRIDE=stride, VOCAB=vocab.n_tokens, SPACE=vocab.space, **ends,
        TOKENS=n_tokens, TOKEN=token,
        POSITIONS=n_positions, PARTS=n_parts, PADDED=triton.next_power_of_2(n_parts),
        num_warps=1, **pdl_options(logits),
    )  # fmt: skip


def reference(
    logits: Tensor,
    logit_rows: Tensor,
    row_slots: Tensor,
    params: SamplingParams,
    state: DecodeState,
    vocab: Vocabulary,
    *,
    n_tokens: int = 1,
    token: int = 0,
) -> None:
    """One token of each row in torch. All writes come last: without the memory for the rest, nothing changes."""
    is_open = (state.is_done[row_slots.long()] == 0) & (params.is_host_sampled[row_slots.long()] == 0)
    if token > 0:
        is_open &= state.is_paused[row_slots.long()] == 0
    slots = row_slots.long()[is_open]
    scores = logits[logit_rows.long()[is_open] * n_tokens + token].clone()
    scores.masked_fill_(_banned(slots, params, state, vocab), -torch.inf)
    times, text = scores[:, vocab.timestamp_begin :], scores[:, : vocab.timestamp_begin]
    is_time = (params.timestamps[slots] != 0) & (times.logsumexp(-1) > text.amax(-1))
    text.masked_fill_(is_time[:, None], -torch.inf)

    temperatures = params.temperatures[slots, None]
    noise = gumbel(params.seeds[slots], state.recent[3, slots], vocab.n_tokens)
    tokens = torch.where(temperatures > 0, scores / temperatures.clamp(min=1e-9) + noise, scores).argmax(-1)
    logprobs = scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1)
    recent, sums = state.recent[:, slots], state.sum_logprobs[slots]
    counts = torch.stack([state.lengths[slots], state.n_text[slots]])
    hotwords = state.hotword_nodes[slots], state.forks[:, slots], state.fork_scores[:, slots]
    for row, slot in enumerate(slots.tolist() if params.hotword_tables else ()):
        if slot in params.hotword_tables and hotwords[1][7, row] < MAX_RETURNS:
            options = params.hotword_tables[slot], params.hotword_boosts[slot], vocab.starts_word
            advance_reference(row, scores, options, (tokens, logprobs), (recent, counts, sums), hotwords)
    n_before = state.recent[3, slots]
    (last, _, last_time, n_sampled), (lengths, n_text) = recent, counts
    sums, is_end = sums + logprobs, tokens == vocab.eot
    written = slots[~is_end], n_text[~is_end].long()
    texts = tokens[~is_end].to(state.texts.dtype), logprobs[~is_end]
    last_time = torch.where(tokens >= vocab.timestamp_begin, tokens, last_time)
    recent = torch.stack([tokens, last, last_time, n_sampled + 1]).to(state.recent.dtype)
    is_over = is_end | (lengths >= state.texts.shape[1]) | (n_sampled + 1 >= params.max_tokens[slots])
    ends = n_text + (~is_end).to(n_text.dtype), lengths + 1, is_over.to(state.is_done.dtype)
    tokens = tokens.to(state.next_tokens.dtype)
    state.sum_logprobs[slots], state.recent[:, slots], state.next_tokens[slots] = sums, recent, tokens
    state.texts[written], state.logprobs[written] = texts
    state.n_text[slots], state.lengths[slots], state.is_done[slots] = ends
    state.hotword_nodes[slots], state.forks[:, slots], state.fork_scores[:, slots] = hotwords
    if token < n_tokens - 1:
        is_accepted = (tokens == state.drafts[token, slots]) & (n_sampled == n_before)
        state.is_paused[slots] = (~is_accepted).long()
        state.n_compared[slots] += 1
        state.n_accepted[slots] += is_accepted.long()


def _banned(slots: Tensor, params: SamplingParams, state: DecodeState, vocab: Vocabulary) -> Tensor:  # [rows, tokens]
    last, before_last, last_time, n_sampled = state.recent[:, slots, None]
    begin, eot = vocab.timestamp_begin, vocab.eot
    tokens = torch.arange(vocab.n_tokens, device=slots.device)
    is_time, is_first = tokens >= begin, n_sampled == 0
    has_times = params.timestamps[slots, None] != 0
    after_time = has_times & (last >= begin)
    is_pair = (before_last >= begin) | (n_sampled < 2)
    is_start = (last >= begin) & (before_last < begin) & (n_sampled >= 2)
    earliest = torch.where(is_start, last_time, last_time + 1)
    banned = params.banned_tokens[slots] != 0
    banned |= is_first & (params.suppress_blank[slots, None] != 0) & ((tokens == vocab.space) | (tokens == eot))
    banned |= is_time & has_times & ((after_time & is_pair) | (tokens < earliest))
    banned |= is_time & has_times & is_first & (tokens > params.max_first_timestamp[slots, None])
    banned |= (tokens < eot) & after_time & ~is_pair
    banned |= ~is_time & has_times & is_first
    return banned
