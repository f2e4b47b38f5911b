"""Whether the next decoder steps draft tokens: by the acceptance seen so far and the measured cost of both kinds.

Plain Python. A drafting step proposes `n_drafts` tokens for every row and verifies them in one pass of the model; a row
gets as many tokens as the model agrees with, and one more.
"""

from __future__ import annotations

from collections.abc import Iterable

from choral.engine.cost_model import StepCost

DECAY = 0.999  # weight of the earlier comparisons after each new one
PRIOR_COMPARED, PRIOR_ACCEPTED = 20.0, 14.0  # until there is evidence
RETRY_STEPS = 200  # plain steps after which drafting is tried again
MIN_GAIN = 1.02  # below this, the noise of the measured costs decides


class SpeculationPolicy:
    def __init__(self, n_drafts: int) -> None:
        self.n_drafts = n_drafts
        self.plain_cost, self.draft_cost = StepCost(), StepCost()
        self._compared, self._accepted = PRIOR_COMPARED, PRIOR_ACCEPTED
        self._n_plain = 0

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that the model agreed with, of those it compared."""
        return self._accepted / self._compared

    @property
    def tokens_per_step(self) -> float:
        """What a drafting step is expected to give each row."""
        return sum(self.acceptance**n for n in range(self.n_drafts + 1))

    def learn(self, n_compared: int, n_accepted: int) -> None:
        decay = DECAY**n_compared
        self._compared = self._compared * decay + n_compared
        self._accepted = self._accepted * decay + n_accepted

    def next_drafts(self, n_rows: int) -> int:
        """How many tokens the next steps draft; 0: plain steps."""
        if self.n_drafts == 0:
            return 0
        if not self.draft_cost.is_known or self._n_plain >= RETRY_STEPS:
            self._n_plain = 0
            return self.n_drafts
        if not self.plain_cost.is_known:
            return 0
        gain = self.tokens_per_step * self.plain_cost.seconds(n_rows) / self.draft_cost.seconds(n_rows)
        if gain >= MIN_GAIN:
            return self.n_drafts
        self._n_plain += 1
        return 0

    def cost_of(self, n_drafts: int) -> StepCost:
        return self.draft_cost if n_drafts else self.plain_cost


class AcceptanceTracker:
    """Teaches the policy from the counts of each window, but for windows with tokens that the draft has not run.

    Without their K/V the draft guesses badly, which says nothing about the windows to come.
    """

    def __init__(self, policy: SpeculationPolicy) -> None:
        self._policy = policy
        self._seen: dict[int, tuple[int, int]] = {}  # by the window's first slot: compared and accepted tokens
        self._skipped: set[int] = set()

    def begin(self, slot: int) -> None:
        self._seen.pop(slot, None)
        self._skipped.discard(slot)

    def skip(self, slots: Iterable[int]) -> None:
        """These windows have a step without drafts."""
        self._skipped.update(slots)

    def update(self, slot: int, n_compared: int, n_accepted: int) -> None:
        """The counts of a window since it began."""
        before_compared, before_accepted = self._seen.get(slot, (0, 0))
        self._seen[slot] = n_compared, n_accepted
        if slot not in self._skipped:
            self._policy.learn(n_compared - before_compared, n_accepted - before_accepted)
