"""Exponential back-off with jitter."""

from __future__ import annotations

import random

JITTER = 0.2  # so that clients that failed together do not retry together


def backoff_s(n_failures: int, first_s: float, max_s: float = float("inf")) -> float:
    """Pause before the next attempt: `first_s` after the first failure, doubled after each later one, ±20 %."""
    pause_s = min(max_s, first_s * 2.0 ** min(n_failures - 1, 60))
    return pause_s * random.uniform(1 - JITTER, 1 + JITTER)
