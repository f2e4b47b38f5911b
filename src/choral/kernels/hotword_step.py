"""Hotwords on the GPU: the best of the tokens that begin or continue one, and the way back from one that failed.

Kernels read the table of a window's hotwords (`hotword_table.py`) by address, so that graphs need not know it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.hotword_table import FORK_STATE, IS_BEGINNING, IS_END, N_COLUMNS, N_TRIED
from choral.kernels.sampling_rules import is_banned

BLOCK_NODES = tl.constexpr(512)
COLUMNS = tl.constexpr(N_COLUMNS)
END, BEGINNING = tl.constexpr(IS_END), tl.constexpr(IS_BEGINNING)
QUEUE, TRIED = tl.constexpr(FORK_STATE), tl.constexpr(N_TRIED)


@triton.jit
def best_hotword(
    best, token, limit, table, node, boost, logits, banned_tokens, slot,
    suppress_blank, timestamps, max_first_timestamp, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """The token whose boosted score is the largest below `limit`, if it exceeds `best`; else `token`. And its score."""
    for span in range(2):  # those that begin a hotword, and those that continue one
        parent = node * span
        first, end = tl.load(table + COLUMNS * parent), tl.load(table + COLUMNS * (parent + 1))
        for start in range(first, end, BLOCK_NODES):
            nodes = start + tl.arange(0, BLOCK_NODES)
            is_child = nodes < end
            tokens = tl.load(table + COLUMNS * nodes + 1, mask=is_child, other=0)
            banned = tl.load(banned_tokens + tokens, mask=is_child, other=1) != 0
            banned |= is_banned(
                tokens, slot, suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN
            )
            scores = tl.load(logits + tokens, mask=is_child, other=-float("inf")) + boost
            scores = tl.where(banned | (is_child == 0) | (scores >= limit), -float("inf"), scores)
            top, index = tl.max(scores, axis=0, return_indices=True)
            top_token = tl.sum(tl.where(nodes == start + index, tokens, 0), axis=0)
            token = tl.where(top > best, top_token, token)
            best = tl.maximum(top, best)
    return token, best


@triton.jit
def find_child(table, node, token):
    """The child of a node that this token leads to; 0 if there is none."""
    first, end = tl.load(table + COLUMNS * node), tl.load(table + COLUMNS * (node + 1))
    found = first * 0
    for start in range(first, end, BLOCK_NODES):
        nodes = start + tl.arange(0, BLOCK_NODES)
        tokens = tl.load(table + COLUMNS * nodes + 1, mask=nodes < end, other=-1)
        found = tl.maximum(found, tl.max(tl.where(tokens == token, nodes, 0), axis=0))
    return found


@triton.jit
def next_node(table, node, token):
    """The token continues the hotword, begins another, or does neither."""
    child = find_child(table, node, token)
    return tl.where(child == 0, find_child(table, node * 0, token), child)


@triton.jit
def advance_hotword(
    token, logprob, boosted, boosted_logprob, last, last_timestamp, n_sampled, length, n_written, sum_logprob,
    table, node_entry, fork, fork_scores, starts_word, n_slots,
):  # fmt: skip
    """Take the boosted token instead of the model's own, or return to where a hotword began that has now failed.

    The queue of a fork, which is filled by `queue_others`, has the tokens that are tried after its other one.
    Returns the token, its log-probability and the state before it, and whether there is a new fork; updates the node
    and the fork of the slot.
    """
    node, fork_token = tl.load(node_entry), tl.load(fork)
    is_whole = ((tl.load(table + COLUMNS * node + 2) & END) != 0) & (tl.load(starts_word + boosted) != 0)
    returns = (fork_token >= 0) & (node != 0) & (find_child(table, node, boosted) == 0) & (is_whole == 0)
    after = next_node(table, node, boosted)
    is_beginning = (tl.load(table + COLUMNS * after + 2) & BEGINNING) != 0
    keeps = (fork_token >= 0) & (after != 0) & (is_beginning == 0)
    is_fork = (returns == 0) & (keeps == 0) & (boosted != token)
    queued = tl.where(returns, tl.load(fork + QUEUE * n_slots), -1)
    other = tl.where(is_fork, token.to(fork_token.dtype), tl.where(keeps & (returns == 0), fork_token, queued))
    before_last, before_time = tl.load(fork + n_slots), tl.load(fork + 2 * n_slots)
    before_sampled, before_length = tl.load(fork + 3 * n_slots), tl.load(fork + 4 * n_slots)
    before_written, before_node = tl.load(fork + 5 * n_slots), tl.load(fork + 6 * n_slots)
    before_sum, other_logprob = tl.load(fork_scores), tl.load(fork_scores + n_slots)
    tl.store(fork, other)
    tl.store(fork + n_slots, last, mask=is_fork)
    tl.store(fork + 2 * n_slots, last_timestamp, mask=is_fork)
    tl.store(fork + 3 * n_slots, n_sampled, mask=is_fork)
    tl.store(fork + 4 * n_slots, length, mask=is_fork)
    tl.store(fork + 5 * n_slots, n_written, mask=is_fork)
    tl.store(fork + 6 * n_slots, node, mask=is_fork)
    tl.store(fork + 7 * n_slots, tl.load(fork + 7 * n_slots) + 1, mask=returns)
    tl.store(fork_scores, sum_logprob, mask=is_fork)
    next_logprob = tl.load(fork_scores + 2 * n_slots)
    tl.store(fork_scores + n_slots, tl.where(is_fork, logprob, next_logprob), mask=is_fork | returns)
    for place in tl.static_range(TRIED - 1):
        following = -1
        if place < TRIED - 2:
            following = tl.load(fork + (QUEUE + 1 + place) * n_slots)
            score = tl.load(fork_scores + (3 + place) * n_slots)
            tl.store(fork_scores + (2 + place) * n_slots, score, mask=returns)
        tl.store(fork + (QUEUE + place) * n_slots, tl.where(is_fork, -1, following), mask=is_fork | returns)
    token = tl.where(returns, fork_token.to(token.dtype), boosted)
    final = next_node(table, tl.where(returns, before_node, node), token)
    tl.store(node_entry, final.to(node.dtype))
    return (
        token,
        tl.where(returns, other_logprob, boosted_logprob),
        tl.where(returns, before_last, last),
        tl.where(returns, before_time, last_timestamp),
        tl.where(returns, before_sampled, n_sampled),
        tl.where(returns, before_length, length),
        tl.where(returns, before_written, n_written),
        tl.where(returns, before_sum, sum_logprob),
        is_fork,
    )


@triton.jit
def queue_others(
    own_token, own_logprob, total, fork, fork_scores,
    best, score, table, node, boost, logits, banned_tokens, slot,
    suppress_blank, timestamps, max_first_timestamp, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """In a new fork, put the next best tokens that begin a hotword before the model's own."""
    is_more = score == score
    for place in tl.static_range(TRIED - 1):
        other, score = best_hotword(
            best, own_token * 0 - 1, score, table, node, boost, logits, banned_tokens, slot,
            suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN,
        )  # fmt: skip
        is_more = is_more & (other >= 0) & (other != own_token)
        row = 0 if place == 0 else QUEUE + place - 1
        logprob = tl.load(logits + tl.maximum(other, 0)) - total
        tl.store(fork + row * n_slots, other.to(fork.dtype.element_ty), mask=is_more)
        tl.store(fork_scores + (1 + place) * n_slots, logprob, mask=is_more)
        tl.store(fork + (QUEUE + place) * n_slots, own_token.to(fork.dtype.element_ty), mask=is_more)
        tl.store(fork_scores + (2 + place) * n_slots, own_logprob, mask=is_more)


@triton.jit
def step_hotword(
    token, logprob, best, total, last, last_timestamp, n_sampled, length, n_written, sum_logprob,
    table, boost, node_entry, fork, fork_scores, starts_word, logits, banned_tokens, slot,
    suppress_blank, timestamps, max_first_timestamp, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """The token to take, its log-probability and the state before it; `token` is the model's own, of score `best`."""
    node = tl.load(node_entry)
    boosted, score = best_hotword(
        best, token, float("inf"), table, node, boost, logits, banned_tokens, slot,
        suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN,
    )  # fmt: skip
    own_token, own_logprob = token, logprob
    token, logprob, last, last_timestamp, n_sampled, length, n_written, sum_logprob, is_fork = advance_hotword(
        token, logprob, boosted, tl.load(logits + boosted) - total,
        last, last_timestamp, n_sampled, length, n_written, sum_logprob,
        table, node_entry, fork, fork_scores, starts_word, n_slots,
    )  # fmt: skip
    if is_fork:
        queue_others(
            own_token, own_logprob, total, fork, fork_scores,
            best, score, table, node, boost, logits, banned_tokens, slot,
            suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN,
        )  # fmt: skip
    return token, logprob, last, last_timestamp, n_sampled, length, n_written, sum_logprob


def advance_reference(
    row: int,
    scores: Tensor,  # [rows, tokens], after the rules
    options: tuple[Tensor, Tensor, Tensor],  # the table, the boost, and which tokens start a word
    choice: tuple[Tensor, Tensor],  # tokens and log-probabilities
    progress: tuple[Tensor, Tensor, Tensor],  # recent tokens, lengths and numbers of text tokens, sums
    hotwords: tuple[Tensor, Tensor, Tensor],  # nodes, forks, scores of forks
) -> None:
    """What `_select_tokens` does with the hotwords of a row, in torch: changes the row of all these tensors."""
    (tokens, logprobs), (recent, counts, sums), (nodes, forks, fork_scores) = choice, progress, hotwords
    table, boost, starts_word = options
    node, plain, fork_token = int(nodes[row]), int(tokens[row]), int(forks[0, row])
    boosted = scores[row].clone()
    for parent in (0, node):
        children = table[int(table[parent, 0]) : int(table[parent + 1, 0]), 1].long()
        boosted[children] = scores[row, children] + boost
    tried = boosted.topk(N_TRIED).indices.tolist()
    best = tried[0]
    child = _child_reference(table, node, best)
    is_whole = int(table[node, 2]) & IS_END and starts_word[best]
    if fork_token >= 0 and node and not child and not is_whole:
        node = int(forks[6, row])
        tokens[row], recent[[0, 2, 3], row], counts[:, row] = fork_token, forks[1:4, row], forks[4:6, row]
        sums[row], logprobs[row] = fork_scores[:2, row]
        forks[0, row], forks[7, row] = forks[FORK_STATE, row], forks[7, row] + 1
        forks[FORK_STATE:, row] = torch.tensor([*forks[FORK_STATE + 1 :, row].tolist(), -1])
        fork_scores[1:-1, row] = fork_scores[2:, row].clone()
    else:
        after = child or _child_reference(table, 0, best)
        if fork_token < 0 or not after or int(table[after, 2]) & IS_BEGINNING:
            forks[0, row] = -1
            if best != plain:
                others = [*(tried[1 : tried.index(plain)] if plain in tried else tried[1:]), plain]
                saved = [*recent[[0, 2, 3], row].tolist(), *counts[:, row].tolist(), node, int(forks[7, row])]
                queue = [*others[1:], *[-1] * (N_TRIED - len(others))]
                forks[:, row] = torch.tensor([others[0], *saved, *queue])
                fork_scores[0, row] = sums[row]
                fork_scores[1 : 1 + len(others), row] = scores[row, others] - scores[row].logsumexp(-1)
        tokens[row], logprobs[row] = best, scores[row, best] - scores[row].logsumexp(-1)
    token = int(tokens[row])
    nodes[row] = _child_reference(table, node, token) or _child_reference(table, 0, token)


def _child_reference(table: Tensor, node: int, token: int) -> int:
    first, end = table[node : node + 2, 0].tolist()
    found = (table[first:end, 1] == token).nonzero()
    return first + int(found[0]) if len(found) else 0
