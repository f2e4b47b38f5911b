"""When requests arrive: at random, in bursts, or more of them by day than by night."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

ARRIVALS = ("poisson", "bursts", "day")
BURST_FACTOR, BURST_PERIOD_S, BURST_S = 4.0, 10.0, 2.0
DAY_LOW = 0.2  # of the mean rate, at night; as much above the mean at noon


def arrival_times(kind: str, rate: float, until_s: float, dice: random.Random) -> Iterator[float]:
    """A Poisson process whose rate changes with time, by thinning; its mean is `rate`."""
    quiet = (BURST_PERIOD_S - BURST_FACTOR * BURST_S) / (BURST_PERIOD_S - BURST_S)
    factors: dict[str, tuple[float, Callable[[float], float]]] = {
        "poisson": (1.0, lambda at_s: 1.0),
        "bursts": (BURST_FACTOR, lambda at_s: BURST_FACTOR if at_s % BURST_PERIOD_S < BURST_S else quiet),
        "day": (2 - DAY_LOW, lambda at_s: 1 - (1 - DAY_LOW) * math.cos(2 * math.pi * at_s / until_s)),
    }
    highest, factor = factors[kind]
    at_s = 0.0
    while (at_s := at_s + dice.expovariate(rate * highest)) < until_s:
        if dice.random() * highest < factor(at_s):
            yield at_s
