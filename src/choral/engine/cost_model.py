"""What steps cost on this machine, learnt from those that were made. Plain Python."""

from __future__ import annotations

MEMORY = 0.98  # how much of what was learnt is kept from one step to the next


class StepCost:
    """Seconds of a step as `fixed + per_item * n`, fitted by least squares, old steps counting less and less."""

    def __init__(self) -> None:
        self._weight = self._n = self._s = self._nn = self._ns = 0.0
        self._most_seen = 0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def learn(self, n_items: int, seconds: float) -> None:
        self._most_seen = max(self._most_seen, n_items)
        sums = ((self._weight, 1.0), (self._n, n_items), (self._s, seconds))
        self._weight, self._n, self._s = (MEMORY * old + new for old, new in sums)
        self._nn = MEMORY * self._nn + n_items * n_items
        self._ns = MEMORY * self._ns + n_items * seconds

    def seconds(self, n_items: int) -> float:
        """Of steps of one size only, all is put down to the items: the safe guess for whoever would wait for more."""
        if not self.is_known:
            return 0.0
        spread = self._weight * self._nn - self._n * self._n
        if spread < 1e-6 * self._weight * self._nn:
            return self._s / self._n * n_items
        per_item = max(0.0, (self._weight * self._ns - self._n * self._s) / spread)
        fixed = max(0.0, (self._s - per_item * self._n) / self._weight)
        return fixed + per_item * n_items

    def most_items(self, seconds: float, n_most: int) -> int:
        """How many items, at least one, a step of so many seconds may have."""
        if not self.is_known:
            return 1
        n_most = min(n_most, 2 * self._most_seen)  # a guess reaches no further than that
        per_item = self.seconds(2) - self.seconds(1)
        if per_item <= 0:
            return n_most
        return max(1, min(n_most, int((seconds - self.seconds(0)) / per_item)))
