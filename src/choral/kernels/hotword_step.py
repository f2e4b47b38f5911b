"""Hotwords on the GPU: the best of the tokens that begin or continue one, and the node of the text after a token.

A table has a row for each node of an `engine.hotword_trie.HotwordTrie` and one more: the first of its children, and the
token that leads to it. Node 0 is the root. `sample` reads tables by address, so that graphs need not know them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from choral.kernels.sampling_rules import gumbel_noise, is_banned

BLOCK_NODES = tl.constexpr(512)


@triton.jit
def best_hotword(
    best, token, table, node, boost, logits, banned_tokens, temperature, seed, slot,
    suppress_blank, timestamps, max_first_timestamp, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """The token whose boosted score is the largest, if it exceeds `best`; else `token`."""
    n_sampled = tl.load(recent + 3 * n_slots + slot)
    for span in range(2):  # those that begin a hotword, and those that continue one
        parent = node * span
        first, end = tl.load(table + 2 * parent), tl.load(table + 2 * parent + 2)
        for start in range(first, end, BLOCK_NODES):
            nodes = start + tl.arange(0, BLOCK_NODES)
            is_child = nodes < end
            tokens = tl.load(table + 2 * nodes + 1, mask=is_child, other=0)
            banned = tl.load(banned_tokens + tokens, mask=is_child, other=1) != 0
            banned |= is_banned(
                tokens, slot, suppress_blank, timestamps, max_first_timestamp, recent, n_slots, EOT, SPACE, BEGIN
            )
            scores = tl.load(logits + tokens, mask=is_child, other=-float("inf")) + boost
            if temperature > 0:
                scores = scores / temperature + gumbel_noise(seed, n_sampled, tokens)
            scores = tl.where(banned | (is_child == 0), -float("inf"), scores)
            top, index = tl.max(scores, axis=0, return_indices=True)
            top_token = tl.sum(tl.where(nodes == start + index, tokens, 0), axis=0)
            token = tl.where(top > best, top_token, token)
            best = tl.maximum(top, best)
    return token


@triton.jit
def _child(table, node, token):
    """The child of a node that this token leads to; 0 if there is none."""
    first, end = tl.load(table + 2 * node), tl.load(table + 2 * node + 2)
    found = first * 0
    for start in range(first, end, BLOCK_NODES):
        nodes = start + tl.arange(0, BLOCK_NODES)
        tokens = tl.load(table + 2 * nodes + 1, mask=nodes < end, other=-1)
        found = tl.maximum(found, tl.max(tl.where(tokens == token, nodes, 0), axis=0))
    return found


@triton.jit
def next_node(table, node, token):
    """The token continues the hotword, begins another, or does neither."""
    child = _child(table, node, token)
    return tl.where(child == 0, _child(table, node * 0, token), child)


def boosted_reference(
    scores: Tensor, slots: Tensor, tables: Mapping[int, Tensor], boosts: Tensor, nodes: Tensor
) -> Tensor:
    """The scores [rows, tokens] with the boosts of these slots, in torch; the same tensor where none has hotwords."""
    boosted = scores
    for row, slot, table in _with_tables(slots, tables):
        boosted = scores.clone() if boosted is scores else boosted
        for node in (0, int(nodes[slot])):
            tokens = table[int(table[node, 0]) : int(table[node + 1, 0]), 1].long()
            boosted[row, tokens] = scores[row, tokens] + boosts[slot]
    return boosted


def next_nodes_reference(tokens: Tensor, slots: Tensor, tables: Mapping[int, Tensor], nodes: Tensor) -> Tensor:
    following = torch.zeros_like(nodes[slots])
    for row, slot, table in _with_tables(slots, tables):
        for node in (0, int(nodes[slot])):
            first, end = table[node : node + 2, 0].tolist()
            found = (table[first:end, 1] == tokens[row]).nonzero()
            if len(found):
                following[row] = first + int(found[0])
    return following


def _with_tables(slots: Tensor, tables: Mapping[int, Tensor]) -> Iterator[tuple[int, int, Tensor]]:
    if tables:
        for row, slot in enumerate(slots.tolist()):
            if slot in tables:
                yield row, slot, tables[slot]
