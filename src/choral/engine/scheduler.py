"""What the engine does next. Plain Python, no torch: `schedule` names a step, `begun`, `finish` and `charge` tell how
it went.

Windows wait in the accounts of their callers. The least served caller is next: if it has a window that can enter, that
is encoded, with those of others that fit the budget; else all that are being decoded go one token further. Newcomers
hold the others up for a set time at most, no caller takes the last places, and where some callers decode many windows
and others few, each has its share of every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from choral.engine.cost_model import StepCost
from choral.engine.encoder_cache import EncoderCache
from choral.engine.fair_share import Account, FairShare, PriorityQueue
from choral.engine.slots import Slots
from choral.engine.steps import Align, Decode, Encode, Prefill, Step, WindowTask

MAX_PREFILL_STALL_S = (
    0.1  # how long newcomers may keep the others waiting for their next token, as far as one does not take longer
)
LONGER_STEP = 1.5  # how much longer a step may get by more than everyone's fair share
RESERVE = 8  # one place in so many is kept for callers that have none


class Scheduler:
    def __init__(self, slots: Slots, cache: EncoderCache[Any], most_encoded_together: int, n_lanes: int = 1) -> None:
        self.slots, self.cache = slots, cache
        self.most_encoded_together, self.n_lanes = most_encoded_together, min(n_lanes, most_encoded_together)
        self.encode_cost, self.decode_cost = StepCost(), StepCost()
        self.n_waiting = self.n_hits = 0
        self.tasks: dict[WindowTask, None] = {}  # all of them
        self._fair = FairShare()
        self._ready: dict[WindowTask, None] = {}  # encoded, and not begun
        self._decoding: dict[Account, None] = {}  # have windows that are being decoded
        self._held_up_s = 0.0  # since their last step

    def add(self, task: WindowTask) -> None:
        assert task.n_slots <= self.slots.n_slots
        self.tasks[task] = None
        self._fair.add(task)
        self.n_waiting += 1

    def schedule(self) -> Step | None:
        if self._ready:
            return self._begin()
        if entered := self._enter():
            self._ready.update(dict.fromkeys(entered))
            missing = tuple(task for task in entered if task.key not in self.cache)
            self.n_hits += len(entered) - len({task.key for task in missing})
            return Encode(missing) if missing else self._begin()
        tasks = self._share_of_step()
        return Decode(tuple(tasks)) if tasks else None

    def _begin(self) -> Step:
        known = tuple(task for task in self._ready if not task.n_slots)
        return Align(known) if known else Prefill(tuple(self._ready))

    def begun(self, task: WindowTask) -> None:
        """Its prompt was run: from now on it decodes, and needs its encoder result no more."""
        del self._ready[task]
        self.cache.release(task.key, task)
        account = self._fair.account(task.caller)
        account.decoding[task] = None
        self._decoding[account] = None

    def finish(self, task: WindowTask) -> None:
        """It leaves, wherever it was: done, failed or no longer wanted."""
        del self.tasks[task]
        account = self._fair.account(task.caller)
        if task in account.decoding:
            del account.decoding[task]
            if not account.decoding:
                del self._decoding[account]
        elif task in self._ready:
            del self._ready[task]
            self.cache.release(task.key, task)
        if task in account.entered:
            del account.entered[task]
            self.slots.release(task)
        else:
            account.waiting.remove(task)
            self.n_waiting -= 1
        self._fair.close_if_empty(account)

    def charge(self, step: Step, seconds: float) -> None:
        """Puts the time of a step down to those who had it. To be called while they are still here."""
        match step:
            case Encode(tasks):
                self.encode_cost.learn(len({task.key for task in tasks}), seconds)
            case Decode(tasks):
                self.decode_cost.learn(sum(task.n_slots for task in tasks), seconds)
        self._held_up_s = 0.0 if isinstance(step, Decode) else self._held_up_s + seconds
        shares = [max(1, task.n_slots) for task in step.tasks]
        accounts = [self._fair.account(task.caller) for task in step.tasks]
        self._fair.move_clocks([*accounts, *self._decoding])
        share_s = seconds / sum(shares)
        for account, share in zip(accounts, shares, strict=True):
            self._fair.charge(account, share * share_s)

    def _enter(self) -> list[WindowTask]:
        """The windows that get a place now: one of each caller in turn, then a second, as far as there is room."""
        n_most = self._most_to_enter()
        if not n_most:
            return []
        entered: list[WindowTask] = []
        for line in self._fair.in_turn():
            decoding_s = [account.served_s for account in self._decoding if self._fair.line(account) is line]
            # Nobody enters first while it is the turn of somebody who is already decoding.
            n_before, latest_s = -1, min(decoding_s, default=math.inf)
            while n_before < len(entered) < n_most:
                n_before = len(entered)
                if self._enter_each_once(line, entered, n_most, latest_s):
                    return entered
            if decoding_s and not entered:
                return []
        return entered

    def _most_to_enter(self) -> int:
        held_up_s = self._held_up_s if self._decoding else 0.0
        n_in_time = self.encode_cost.most_items(MAX_PREFILL_STALL_S - held_up_s, self.most_encoded_together)
        if not held_up_s:
            return max(self.n_lanes, n_in_time)
        return n_in_time if held_up_s + self.encode_cost.seconds(1) <= MAX_PREFILL_STALL_S else 0

    def _enter_each_once(self, line: PriorityQueue, entered: list[WindowTask], n_most: int, latest_s: float) -> bool:
        """True: the next one must wait, for room or for its turn, and nobody may pass it."""
        popped: list[Account] = []
        must_wait = False
        while len(entered) < n_most and not must_wait and (account := line.pop()) is not None:
            popped.append(account)
            if self._may_take_more(account):
                task = account.waiting[0]
                is_early = not entered and (account.served_s > latest_s or self._waits_for_company(task))
                must_wait = is_early or task.n_slots > self.slots.n_free
                if not must_wait:
                    entered.append(self._give_place(account))
        for account in popped:
            line.put(account)
        return must_wait

    def _may_take_more(self, account: Account) -> bool:
        """The last places are for callers that have none."""
        n_left = self.slots.n_free - account.waiting[0].n_slots
        return account.n_slots == 0 or n_left >= self.slots.n_slots // RESERVE

    def _waits_for_company(self, task: WindowTask) -> bool:
        """Encoded alone it would leave lanes empty that others, with a place each, could fill."""
        n_together = min(self.n_lanes, self.n_waiting)
        return (
            bool(self._decoding) and 0 < task.n_slots <= self.slots.n_free < n_together and task.key not in self.cache
        )

    def _give_place(self, account: Account) -> WindowTask:
        task = account.waiting.popleft()
        self.n_waiting -= 1
        account.entered[task] = None
        task.slots = self.slots.take(task, task.n_slots)
        self.cache.hold(task.key, task)
        return task

    def _share_of_step(self) -> list[WindowTask]:
        """All that are being decoded; if callers have many and few, the same number of each, and what comes cheap."""
        if not self._decoding:
            return []
        n_fair = min(len(account.decoding) for account in self._decoding)
        queues = [list(account.decoding) for account in self._decoding]
        tasks = [task for queue in queues for task in queue[:n_fair]]
        n_rows = sum(task.n_slots for task in tasks)
        longest_s = LONGER_STEP * self.decode_cost.seconds(n_rows) if self.decode_cost.is_known else math.inf
        for task in in_turn([queue[n_fair:] for queue in queues]):
            n_rows += task.n_slots
            if len(queues) > 1 and self.decode_cost.seconds(n_rows) > longest_s:
                break
            tasks.append(task)
        self._have_had_their_turn(tasks)
        return tasks

    def _have_had_their_turn(self, tasks: list[WindowTask]) -> None:
        for task in tasks:
            decoding = self._fair.account(task.caller).decoding
            del decoding[task]
            decoding[task] = None

    def check_integrity(self) -> None:
        self.slots.check_integrity()
        self.cache.check_integrity()
        accounts = self._fair.accounts()
        entered = [task for account in accounts for task in account.entered]
        decoding = [task for account in accounts for task in account.decoding]
        waiting = [task for account in accounts for task in account.waiting]
        assert set(self.tasks) == {*waiting, *entered}, "a window is lost"
        assert self.n_waiting == len(waiting), "waiting windows are miscounted"
        assert all(account.waiting or account.entered for account in accounts), "an account of nobody is open"
        assert {task for task in entered if task.n_slots} == self.slots.holders, "places are held by others"
        assert set(entered) == {*decoding, *self._ready}, "a window is inside and neither ready nor being decoded"
        assert set(self._ready) == self.cache.holders, "encoder results are held by others"
        assert set(self._decoding) == {account for account in accounts if account.decoding}


def in_turn(queues: Sequence[Sequence[WindowTask]]) -> Iterator[WindowTask]:
    """The first of each, then the second of each."""
    return (task for rank in zip_longest(*queues) for task in rank if task is not None)
