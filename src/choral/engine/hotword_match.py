"""How far a text is in its hotwords, and what they add to its score when beams are compared. Plain Python.

A token of a hotword makes up for what the model prefers another token by, up to `boost`, and adds a little, so that it
wins where the model hesitates: more would reward hotwords that nobody says. A part of a hotword that does not become
whole loses all of it again with the first token that does not fit, and so does a whole one that turns out to begin a
longer word.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from choral.engine.hotword_trie import ROOT, HotwordTrie

PREFERENCE = 0.5  # of a token that the model finds as likely as another


@dataclass(frozen=True)
class HotwordMatch:
    trie: HotwordTrie
    boost: float
    starts_word: Callable[[int], bool]  # whether a token does not continue the word before it
    node: int = ROOT
    bonus: float = 0.0
    pending: float = 0.0  # the part of the bonus that depends on the hotword becoming whole

    def after(self, token: int, gap: float = math.inf) -> HotwordMatch:
        """`gap`: by how much the model prefers its best token, as a difference of log-probabilities."""
        child, added = self.trie.child(self.node, token), min(self.boost, gap + PREFERENCE)
        if child is not None:
            pending = added + (0.0 if self.trie.n_pending[child] == 1 else self.pending)
            return replace(self, node=child, bonus=self.bonus + added, pending=pending)
        bonus = self.bonus - (self.pending if self.fails(token) else 0.0)
        first = self.trie.child(ROOT, token)
        if first is None:
            return replace(self, node=ROOT, bonus=bonus, pending=0.0)
        return replace(self, node=first, bonus=bonus + added, pending=added)

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
