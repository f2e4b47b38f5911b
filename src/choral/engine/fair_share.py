"""Fair queueing: the engine's time is shared between callers, whatever the number of their windows. Plain Python.

Each caller has an account of the seconds it was served; the least served caller is next. A new caller starts level with
the least served caller in the engine, so staying away earns no credit. Priority classes share in the same way,
weighted: interactive callers get four times the time of batch callers, and batch work never stops.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import get_args

from choral.engine.steps import WindowTask
from choral.engine.window import Caller
from choral.options import Priority

WEIGHTS: dict[Priority, float] = {"interactive": 4.0, "batch": 1.0}


@dataclass(eq=False)
class Account:
    caller: Caller
    number: int  # by arrival
    served_s: float
    is_queued: bool = False
    waiting: deque[WindowTask] = field(default_factory=deque)
    admitted: dict[WindowTask, None] = field(default_factory=dict)  # hold their slots
    decoding: dict[WindowTask, None] = field(default_factory=dict)  # least recently stepped first

    @property
    def n_slots(self) -> int:
        return sum(len(task.slots) for task in self.admitted)


class PriorityQueue:
    """The accounts of one priority class; a heap of those with waiting windows, the least served on top."""

    def __init__(self) -> None:
        self.served_s = 0.0  # of all its callers, divided by the weight of the class
        self.clock_s = 0.0  # where new accounts start: the least served among those in the last step
        self.accounts: dict[Caller, Account] = {}
        self._heap: list[tuple[float, int, Account]] = []

    def put(self, account: Account) -> None:
        if account.waiting and not account.is_queued:
            account.is_queued = True
            heapq.heappush(self._heap, (account.served_s, account.number, account))

    def pop(self) -> Account | None:
        """The least served account with waiting windows. A heap key may be stale, but only too low: it is put back."""
        while self._heap:
            served_s, _, account = heapq.heappop(self._heap)
            account.is_queued = False
            if account.waiting and served_s == account.served_s:
                return account
            self.put(account)
        return None


class FairShare:
    def __init__(self) -> None:
        self.queues: dict[Priority, PriorityQueue] = {priority: PriorityQueue() for priority in get_args(Priority)}
        self._numbers = count()

    def account(self, caller: Caller) -> Account:
        """The account of a caller; a new one starts at the clock of its class."""
        queue = self.queues[caller.priority]
        if not queue.accounts:
            busy = [other.served_s for other in self.queues.values() if other.accounts]
            queue.served_s = max([queue.served_s, *busy[:1]])
        if caller not in queue.accounts:
            queue.accounts[caller] = Account(caller, next(self._numbers), queue.clock_s)
        return queue.accounts[caller]

    def add(self, task: WindowTask) -> None:
        account = self.account(task.caller)
        account.waiting.append(task)
        self.queue_of(account).put(account)

    def queue_of(self, account: Account) -> PriorityQueue:
        return self.queues[account.caller.priority]

    def close_if_empty(self, account: Account) -> None:
        if not account.waiting and not account.admitted:
            self.queue_of(account).accounts.pop(account.caller, None)

    def advance_clocks(self, in_service: Sequence[Account]) -> None:
        """Set each class's clock to its least served account among these; it never goes back."""
        for queue in self.queues.values():
            served_s = [account.served_s for account in in_service if self.queue_of(account) is queue]
            queue.clock_s = max(queue.clock_s, min(served_s, default=0.0))

    def charge(self, account: Account, seconds: float) -> None:
        account.served_s += seconds
        self.queue_of(account).served_s += seconds / WEIGHTS[account.caller.priority]

    def accounts(self) -> list[Account]:
        return [account for queue in self.queues.values() for account in queue.accounts.values()]

    def queues_in_turn(self) -> list[PriorityQueue]:
        """Classes that have callers, the least served first; on a tie the interactive one."""
        return sorted((queue for queue in self.queues.values() if queue.accounts), key=lambda queue: queue.served_s)
