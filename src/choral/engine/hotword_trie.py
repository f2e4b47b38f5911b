"""Hotwords as a prefix tree over token ids, in flat arrays that a GPU can read as they are. No torch.

The state of a text is a node: the part of a hotword that the text ends with, or `ROOT`. Nodes are numbered breadth
first, so the children of a node lie side by side, by ascending token.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

ROOT = 0
MAX_NODES = 65_000  # a mebibyte; a thousand names have about 3,000
N_COLUMNS = 4

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class HotwordTrie:
    packed: bytes  # int32: `first_children`, and three columns with an entry for each node

    @classmethod
    def build(cls, terms: Iterable[tuple[int, ...]], starts_word: Callable[[int], bool]) -> HotwordTrie:
        """`starts_word` says of a token whether it does not continue the word before it."""
        root = _Node()
        for term in terms:
            root.add(term)
        nodes, n_children = [root], []
        for node in nodes:  # grows
            for token in sorted(node.children):
                child = node.children[token]
                is_new = node.is_end and starts_word(token)  # the hotword before it is complete
                child.token, child.n_pending = token, 1 + (0 if is_new else node.n_pending)
                nodes.append(child)
            n_children.append(len(node.children))
        columns = [
            list(accumulate(n_children, initial=1)),
            [node.token for node in nodes],
            [node.is_end for node in nodes],
            [node.n_pending for node in nodes],
        ]
        return cls(np.concatenate([np.array(column, dtype=np.int32) for column in columns]).tobytes())

    @classmethod
    def checked(cls, packed: bytes) -> HotwordTrie:
        """A trie from another process; `ValueError` if reading it could leave its arrays. Runners check its tokens."""
        trie = cls(packed)
        if len(packed) != 4 * (N_COLUMNS * trie.n_nodes + 1) or not 1 <= trie.n_nodes <= MAX_NODES:
            raise ValueError("hotwords of a wrong length")
        firsts = trie.first_children
        is_tree = firsts[0] == 1 and firsts[-1] == trie.n_nodes and bool((np.diff(firsts) >= 0).all())
        if not is_tree or (firsts[:-1] <= np.arange(trie.n_nodes)).any():
            raise ValueError("hotwords that are not a tree")
        return trie

    @cached_property
    def n_nodes(self) -> int:
        return len(self.packed) // (4 * N_COLUMNS)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.packed).digest()

    @cached_property
    def first_children(self) -> Int32:  # [nodes + 1]
        """The children of a node are those from its entry up to the next entry."""
        return np.frombuffer(self.packed, np.int32, self.n_nodes + 1)

    @property
    def tokens(self) -> Int32:  # [nodes]
        """The token that leads to each node from its parent."""
        return self._column(0)

    @cached_property
    def token_range(self) -> tuple[int, int]:
        return int(self.tokens.min()), int(self.tokens.max())

    @cached_property
    def is_end(self) -> list[int]:
        """Whether a hotword ends at each node."""
        return list(self._column(1).tolist())

    @cached_property
    def n_pending(self) -> list[int]:
        """The tokens of each node's part of a hotword, less those of a shorter hotword that it begins with."""
        return list(self._column(2).tolist())

    def _column(self, index: int) -> Int32:
        n_nodes = self.n_nodes
        return np.frombuffer(self.packed, np.int32, n_nodes, 4 * (1 + n_nodes * (1 + index)))

    def children(self, node: int) -> tuple[int, int]:
        first, end = self.first_children[node : node + 2].tolist()
        return first, end

    def child(self, node: int, token: int) -> int | None:
        first, end = self.children(node)
        found = bisect_left(self._token_view, token, first, end)
        return found if found < end and self._token_view[found] == token else None

    @cached_property
    def _token_view(self) -> memoryview:
        return self.tokens.data


class _Node:
    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.token, self.is_end, self.n_pending = 0, False, 0

    def add(self, term: tuple[int, ...]) -> None:
        node = self
        for token in term:
            node = node.children.setdefault(token, _Node())
        node.is_end = True
