"""The duration of steps on this machine, fitted to the steps that were run. Plain Python."""

from __future__ import annotations

DECAY = 0.98  # weight of the earlier samples after each new one


class StepCost:
    """Seconds of one kind of step as `fixed + per_item * n`: least squares with exponentially decaying weights."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._weight = self._n = self._s = self._nn = self._ns = 0.0
        self._largest_sample = 0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def learn(self, n_items: int, seconds: float) -> None:
        self.total_s += seconds
        self._largest_sample = max(self._largest_sample, n_items)
        sums = ((self._weight, 1.0), (self._n, n_items), (self._s, seconds))
        self._weight, self._n, self._s = (DECAY * old + new for old, new in sums)
        self._nn = DECAY * self._nn + n_items * n_items
        self._ns = DECAY * self._ns + n_items * seconds

    def seconds(self, n_items: int) -> float:
        """While all samples have one size, the whole cost counts as per-item: larger steps are then overestimated."""
        if not self.is_known:
            return 0.0
        spread = self._weight * self._nn - self._n * self._n
        if spread < 1e-6 * self._weight * self._nn:
            return self._s / self._n * n_items
        per_item = max(0.0, (self._weight * self._ns - self._n * self._s) / spread)
        fixed = max(0.0, (self._s - per_item * self._n) / self._weight)
        return fixed + per_item * n_items

    def max_items(self, seconds: float, limit: int) -> int:
        """How many items, at least one, fit into a step of this many seconds."""
        if not self.is_known:
            return 1
        limit = min(limit, 2 * self._largest_sample)  # extrapolates no further than twice the largest sample
        per_item = self.seconds(2) - self.seconds(1)
        if per_item <= 0:
            return limit
        return max(1, min(limit, int((seconds - self.seconds(0)) / per_item)))


class CostModel:
    """The cost of each kind of step: encode by windows, prefill and align by windows, decode by rows."""

    def __init__(self) -> None:
        self.encode, self.prefill, self.decode, self.align = (StepCost() for _ in range(4))

    @property
    def busy_s(self) -> float:
        """All time that was measured."""
        return self.encode.total_s + self.prefill.total_s + self.decode.total_s + self.align.total_s
