"""How long to pause before the next try: twice as long each time, and never the same for two who failed together."""

from __future__ import annotations

import random

JITTER = 0.2


def backoff_s(n_failures: int, first_s: float, most_s: float = float("inf")) -> float:
    """After the first failure about `first_s`, give or take a fifth."""
    pause_s = min(most_s, first_s * 2.0 ** min(n_failures - 1, 60))
    return pause_s * random.uniform(1 - JITTER, 1 + JITTER)
