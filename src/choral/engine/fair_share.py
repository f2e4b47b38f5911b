"""Whose turn it is: the engine's time is shared between callers, whatever the number of their windows.

Every caller has an account of the seconds it was served. The least served is next; who comes anew starts level with
the one whose turn it is, so that nobody saves up time by staying away. Priority classes share in the same way, with
interactive callers charged a quarter: they go first, and yet batch work always goes on. Plain Python.
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
from choral.types import Priority

CHARGE: dict[Priority, float] = {"interactive": 0.25, "batch": 1.0}


@dataclass(eq=False)
class Account:
    caller: Caller
    number: int  # by arrival
    served_s: float
    is_in_line: bool = False
    waiting: deque[WindowTask] = field(default_factory=deque)
    entered: dict[WindowTask, None] = field(default_factory=dict)  # have their places
    decoding: dict[WindowTask, None] = field(
        default_factory=dict
    )  # the one that waited longest for its next token first

    @property
    def n_slots(self) -> int:
        return sum(len(task.slots) for task in self.entered)


class PriorityQueue:
    """The accounts of one priority class; those with waiting windows in a heap, the least served on top."""

    def __init__(self) -> None:
        self.served_s = 0.0  # weighted, of all its callers
        self.clock_s = 0.0  # how much the least served of those inside had had before the last step
        self.accounts: dict[Caller, Account] = {}
        self._heap: list[tuple[float, int, Account]] = []

    def put(self, account: Account) -> None:
        """Into the line, if it waits and is not there yet."""
        if account.waiting and not account.is_in_line:
            account.is_in_line = True
            heapq.heappush(self._heap, (account.served_s, account.number, account))

    def pop(self) -> Account | None:
        """The least served account that waits. A key can be out of date, but only too low: it is then put right."""
        while self._heap:
            served_s, _, account = heapq.heappop(self._heap)
            account.is_in_line = False
            if account.waiting and served_s == account.served_s:
                return account
            self.put(account)
        return None


class FairShare:
    def __init__(self) -> None:
        self.lines: dict[Priority, PriorityQueue] = {priority: PriorityQueue() for priority in get_args(Priority)}
        self._numbers = count()

    def account(self, caller: Caller) -> Account:
        """The account of a caller, opened level with those that are being served."""
        line = self.lines[caller.priority]
        if not line.accounts:
            busy = [other.served_s for other in self.lines.values() if other.accounts]
            line.served_s = max([line.served_s, *busy[:1]])
        if caller not in line.accounts:
            line.accounts[caller] = Account(caller, next(self._numbers), line.clock_s)
        return line.accounts[caller]

    def add(self, task: WindowTask) -> None:
        account = self.account(task.caller)
        account.waiting.append(task)
        self.line(account).put(account)

    def line(self, account: Account) -> PriorityQueue:
        return self.lines[account.caller.priority]

    def close_if_empty(self, account: Account) -> None:
        if not account.waiting and not account.entered:
            self.line(account).accounts.pop(account.caller, None)

    def move_clocks(self, inside: Sequence[Account]) -> None:
        """Who comes anew will start level with the one of these, who are being served, that had least."""
        for line in self.lines.values():
            had_s = [account.served_s for account in inside if self.line(account) is line]
            line.clock_s = max(line.clock_s, min(had_s, default=0.0))

    def charge(self, account: Account, seconds: float) -> None:
        account.served_s += seconds
        self.line(account).served_s += seconds * CHARGE[account.caller.priority]

    def accounts(self) -> list[Account]:
        return [account for line in self.lines.values() for account in line.accounts.values()]

    def in_turn(self) -> list[PriorityQueue]:
        """Classes with somebody in them, the least served first; on a tie the interactive one."""
        return sorted((line for line in self.lines.values() if line.accounts), key=lambda line: line.served_s)
