"""How far a text is in its hotwords, and what they add to its score when beams are compared. Plain Python.

Every token of a hotword adds `boost`. A part of a hotword that does not become whole loses it again with the first
token that does not fit, and so does a whole one that turns out to begin a longer word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from choral.engine.hotword_trie import ROOT, HotwordTrie


@dataclass(frozen=True)
class HotwordMatch:
    trie: HotwordTrie
    boost: float
    starts_word: Callable[[int], bool]  # whether a token does not continue the word before it
    node: int = ROOT
    bonus: float = 0.0

    def after(self, token: int) -> HotwordMatch:
        child = self.trie.child(self.node, token)
        if child is not None:
            return replace(self, node=child, bonus=self.bonus + self.boost)
        bonus = self.bonus - (self.boost * self.trie.n_pending[self.node] if self.fails(token) else 0.0)
        first = self.trie.child(ROOT, token)
        if first is None:
            return replace(self, node=ROOT, bonus=bonus)
        return replace(self, node=first, bonus=bonus + self.boost)

    def fails(self, token: int) -> bool:
        """Whether the text has a part of a hotword that does not become whole with this token."""
        if self.node == ROOT or self.trie.child(self.node, token) is not None:
            return False
        return not (self.trie.is_end[self.node] and self.starts_word(token))

    @property
    def is_beginning(self) -> bool:
        """Whether the last token is the first of a hotword, or of what follows a shorter one."""
        return self.trie.n_pending[self.node] == 1

    @property
    def boosted_nodes(self) -> list[tuple[int, int]]:
        """The spans of nodes whose tokens begin or continue a hotword here."""
        spans = [self.trie.children(ROOT)]
        return spans if self.node == ROOT else [*spans, self.trie.children(self.node)]
