"""Hotword tries on the device of a runner, and the boost of rows whose searches run on the host."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from choral.engine.hotword_match import HotwordMatch
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.torch_device import to_device
from choral.kernels.hotword_table import IS_BEGINNING, IS_END

MAX_TABLES = 64  # that stay on the device; of 800 kB at most


class HotwordTables:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: OrderedDict[HotwordTrie, Tensor] = OrderedDict()

    def table(self, trie: HotwordTrie) -> Tensor:  # [nodes + 1, 3], int32
        """As `kernels.hotword_table` describes it."""
        table = self._tables.pop(trie, None)
        if table is None:
            flags = np.array(trie.is_end) * IS_END + (np.array(trie.n_pending) == 1) * IS_BEGINNING
            columns = [trie.first_children, np.append(trie.tokens, 0), np.append(flags, 0)]
            table = to_device(torch.from_numpy(np.stack(columns, axis=1).astype(np.int32)), self._device)
        self._tables[trie] = table
        if len(self._tables) > MAX_TABLES:
            self._tables.popitem(last=False)
        return table

    def boosted(self, logits: Tensor, matches: Sequence[HotwordMatch | None]) -> Tensor | None:
        """A copy of the logits in which the tokens of hotwords are boosted; None where no row has hotwords."""
        if all(match is None for match in matches):
            return None
        boosted = logits.clone()
        for row, match in enumerate(matches):
            if match is not None:
                table = self.table(match.trie)
                for first, end in match.boosted_nodes:
                    tokens = table[first:end, 1].long()
                    boosted[row, tokens] = logits[row, tokens] + match.boost
        return boosted
