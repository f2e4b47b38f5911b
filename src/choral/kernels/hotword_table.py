"""The table of a hotword trie that kernels read, and the limit on what its hotwords may cost. No torch, no Triton.

A row for each node of an `engine.hotword_trie.HotwordTrie` and one more: its first child, the token that leads to it,
and flags. Node 0 is the root.
"""

N_COLUMNS = 3
IS_END, IS_BEGINNING = 1, 2  # flags: a hotword ends here; the token is its first, or the first after a shorter one
MAX_RETURNS = 32  # of a window, to where a hotword began that did not become whole; then hotwords are not boosted
N_TRIED = 4  # of the tokens that could begin a hotword at one place, the best first; then comes the model's own
FORK_STATE = 8  # rows of a fork before those of the tokens that come after the first other one
