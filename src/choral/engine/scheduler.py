"""Decides the engine's next step. Plain Python, no torch: `schedule` names a step, `update` applies its outcomes.

Windows wait in the accounts of their callers. The least served caller is next: if one of its windows can be admitted,
that window is encoded and prefilled, batched with those of other callers; otherwise all admitted windows decode one
token. Prefill stalls decoding for a bounded time, no caller takes the last slots, and where some callers decode many
windows and others few, each gets its share of every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from choral.engine.cost_model import CostModel, StepCost
from choral.engine.encoder_cache import EncoderCache
from choral.engine.fair_share import Account, FairShare, PriorityQueue
from choral.engine.slots import Slots
from choral.engine.steps import Align, Decode, Encode, Failed, Finished, InProgress, Outcome, Prefill, Step, WindowTask

MAX_PREFILL_STALL_S = 0.1  # longest decode stall that encode and prefill may cause; a single encode may exceed it
MAX_STEP_STRETCH = 1.5  # how much longer than its fair share alone a decode step may take
RESERVE_ONE_IN = 8  # one slot in this many is reserved for callers that hold none


@dataclass
class Counts:
    windows: int = 0  # that have left: finished, failed or cancelled
    failed: int = 0
    cancelled: int = 0
    encoded: int = 0
    cache_hits: int = 0
    encoder_steps: int = 0
    steps: int = 0  # of the decoder
    rows: int = 0  # of all decoder steps


class Scheduler:
    def __init__(
        self,
        slots: Slots,
        cache: EncoderCache[Any],
        max_encode_batch: int,
        n_lanes: int = 1,
        measured_costs: CostModel | None = None,
        *,
        is_micro_batch: bool = False,
    ) -> None:
        """`measured_costs` is kept up to date by a runner that times its own steps; without it, `update` learns.

        With `is_micro_batch`, a decode step runs its windows to their end: it starts when no more can be admitted.
        """
        self.slots, self.cache = slots, cache
        self.max_encode_batch, self.n_lanes = max_encode_batch, min(n_lanes, max_encode_batch)
        self._is_micro_batch = is_micro_batch
        self.costs, self._is_runner_timed = measured_costs or CostModel(), measured_costs is not None
        self.counts, self.n_waiting = Counts(), 0
        self.tasks: dict[WindowTask, None] = {}  # all of them
        self._fair = FairShare()
        self._ready: dict[WindowTask, None] = {}  # admitted, and not prefilled
        self._decoding: dict[Account, None] = {}  # accounts with windows that are being decoded
        self._stall_s = 0.0  # time spent in other steps since the last decode step

    def add(self, task: WindowTask) -> None:
        assert task.n_slots <= self.slots.n_slots
        self.tasks[task] = None
        self._fair.add(task)
        self.n_waiting += 1

    def schedule(self) -> Step | None:
        if self._ready:
            return self._prefill()
        if admitted := self._admit():
            self._ready.update(dict.fromkeys(admitted))
            missing = tuple(task for task in admitted if task.key not in self.cache)
            self.counts.cache_hits += len(admitted) - len({task.key for task in missing})
            return Encode(missing) if missing else self._prefill()
        tasks = self._decode_batch()
        return Decode(tuple(tasks)) if tasks else None

    def _prefill(self) -> Step:
        without_slots = tuple(task for task in self._ready if not task.n_slots)
        return Align(without_slots) if without_slots else Prefill(tuple(self._ready))

    def update(
        self, step: Step, outcomes: Sequence[Outcome], seconds: float
    ) -> list[tuple[WindowTask, Finished | Failed]]:
        """Apply a step that ran: learn and charge its time, count it, and remove the windows that ended."""
        self._charge(step, seconds)
        self._count(step, outcomes)
        ended = []
        for task, outcome in zip(step.tasks, outcomes, strict=True):
            if not isinstance(outcome, InProgress):
                self.remove(task, outcome)
                ended.append((task, outcome))
            elif isinstance(step, Prefill):
                self._mark_decoding(task)
        return ended

    def remove(self, task: WindowTask, outcome: Finished | Failed) -> None:
        """Release all a window holds, wherever it was."""
        del self.tasks[task]
        self.counts.windows += 1
        if isinstance(outcome, Failed):
            is_cancelled = isinstance(outcome.error, CancelledError)
            self.counts.cancelled += is_cancelled
            self.counts.failed += not is_cancelled
        account = self._fair.account(task.caller)
        if task in account.decoding:
            del account.decoding[task]
            if not account.decoding:
                del self._decoding[account]
        elif task in self._ready:
            del self._ready[task]
            self.cache.release(task.key, task)
        if task in account.admitted:
            del account.admitted[task]
            self.slots.release(task)
        else:
            account.waiting.remove(task)
            self.n_waiting -= 1
        self._fair.close_if_empty(account)

    def expected_s(self, step: Step) -> float | None:
        cost, n_items = self._cost(step)
        return cost.seconds(n_items) if cost.is_known else None

    def _cost(self, step: Step) -> tuple[StepCost, int]:
        match step:
            case Encode(tasks):
                return self.costs.encode, len({task.key for task in tasks})
            case Prefill(tasks):
                return self.costs.prefill, len(tasks)
            case Decode(tasks):
                return self.costs.decode, sum(task.n_slots for task in tasks)
            case Align(tasks):
                return self.costs.align, len(tasks)

    def _charge(self, step: Step, seconds: float) -> None:
        if not self._is_runner_timed:
            cost, n_items = self._cost(step)
            cost.learn(n_items, seconds)
        self._stall_s = 0.0 if isinstance(step, Decode) else self._stall_s + seconds
        shares = [max(1, task.n_slots) for task in step.tasks]
        accounts = [self._fair.account(task.caller) for task in step.tasks]
        self._fair.advance_clocks([*accounts, *self._decoding])
        share_s = seconds / sum(shares)
        for account, share in zip(accounts, shares, strict=True):
            self._fair.charge(account, share * share_s)

    def _count(self, step: Step, outcomes: Sequence[Outcome]) -> None:
        match step:
            case Encode(tasks):
                results = zip(tasks, outcomes, strict=True)
                self.counts.encoder_steps += 1
                self.counts.encoded += len({task.key for task, outcome in results if isinstance(outcome, InProgress)})
            case Decode(tasks):
                self.counts.steps += 1
                self.counts.rows += sum(task.n_slots for task in tasks)

    def _mark_decoding(self, task: WindowTask) -> None:
        """Its prompt has run: it decodes from now on, and its encoder result is no longer held."""
        del self._ready[task]
        self.cache.release(task.key, task)
        account = self._fair.account(task.caller)
        account.decoding[task] = None
        self._decoding[account] = None

    def _admit(self) -> list[WindowTask]:
        """Assign slots to waiting windows: one of each caller in turn, then a second, while there is room."""
        limit = self._max_admissions()
        if not limit:
            return []
        admitted: list[WindowTask] = []
        for queue in self._fair.queues_in_turn():
            decoding_s = [account.served_s for account in self._decoding if self._fair.queue_of(account) is queue]
            # The first window to be admitted must not belong to a caller served more than one already decoding.
            n_before, max_served_s = -1, min(decoding_s, default=math.inf)
            while n_before < len(admitted) < limit:
                n_before = len(admitted)
                if self._admit_one_each(queue, admitted, limit, max_served_s):
                    return admitted
            if decoding_s and not admitted:
                return []
        return admitted

    def _max_admissions(self) -> int:
        stall_s = self._stall_s if self._decoding and not self._is_micro_batch else 0.0
        n_in_time = self.costs.encode.max_items(MAX_PREFILL_STALL_S - stall_s, self.max_encode_batch)
        if not stall_s:
            return max(self.n_lanes, n_in_time)
        return n_in_time if stall_s + self.costs.encode.seconds(1) <= MAX_PREFILL_STALL_S else 0

    def _admit_one_each(
        self, queue: PriorityQueue, admitted: list[WindowTask], limit: int, max_served_s: float
    ) -> bool:
        """True: the next window must wait, for slots or for its turn, and none may overtake it."""
        popped: list[Account] = []
        must_wait = False
        while len(admitted) < limit and not must_wait and (account := queue.pop()) is not None:
            popped.append(account)
            if self._leaves_reserve(account):
                task = account.waiting[0]
                is_early = not admitted and (account.served_s > max_served_s or self._should_wait_for_lanes(task))
                must_wait = is_early or task.n_slots > self.slots.n_free
                if not must_wait:
                    admitted.append(self._assign_slots(account))
        for account in popped:
            queue.put(account)
        return must_wait

    def _leaves_reserve(self, account: Account) -> bool:
        """The last slots are for callers that hold none."""
        n_left = self.slots.n_free - account.waiting[0].n_slots
        return account.n_slots == 0 or n_left >= self.slots.n_slots // RESERVE_ONE_IN

    def _should_wait_for_lanes(self, task: WindowTask) -> bool:
        """Encoding it now would leave encoder lanes empty that other waiting windows fill once slots are free."""
        n_together = min(self.n_lanes, self.n_waiting)
        return (
            bool(self._decoding) and 0 < task.n_slots <= self.slots.n_free < n_together and task.key not in self.cache
        )

    def _assign_slots(self, account: Account) -> WindowTask:
        task = account.waiting.popleft()
        self.n_waiting -= 1
        account.admitted[task] = None
        task.slots = self.slots.take(task, task.n_slots)
        self.cache.hold(task.key, task)
        return task

    def _decode_batch(self) -> list[WindowTask]:
        """The same number of windows of each caller, and of the others those that stretch the step little."""
        if not self._decoding:
            return []
        n_fair = min(len(account.decoding) for account in self._decoding)
        queues = [list(account.decoding) for account in self._decoding]
        tasks = [task for queue in queues for task in queue[:n_fair]]
        n_rows = sum(task.n_slots for task in tasks)
        cost = self.costs.decode
        max_s = MAX_STEP_STRETCH * cost.seconds(n_rows) if cost.is_known else math.inf
        for task in round_robin([queue[n_fair:] for queue in queues]):
            n_rows += task.n_slots
            if len(queues) > 1 and cost.seconds(n_rows) > max_s:
                break
            tasks.append(task)
        self._move_to_back(tasks)
        return tasks

    def _move_to_back(self, tasks: list[WindowTask]) -> None:
        for task in tasks:
            decoding = self._fair.account(task.caller).decoding
            del decoding[task]
            decoding[task] = None

    def check_integrity(self) -> None:
        self.slots.check_integrity()
        self.cache.check_integrity()
        accounts = self._fair.accounts()
        admitted = [task for account in accounts for task in account.admitted]
        decoding = [task for account in accounts for task in account.decoding]
        waiting = [task for account in accounts for task in account.waiting]
        assert set(self.tasks) == {*waiting, *admitted}, "a window is lost"
        assert self.n_waiting == len(waiting), "waiting windows are miscounted"
        assert all(account.waiting or account.admitted for account in accounts), "an empty account is open"
        assert {task for task in admitted if task.n_slots} == self.slots.holders, "slots are held by other windows"
        assert set(admitted) == {*decoding, *self._ready}, "an admitted window is neither ready nor being decoded"
        assert set(self._ready) == self.cache.holders, "encoder results are held by other windows"
        assert set(self._decoding) == {account for account in accounts if account.decoding}


def round_robin(queues: Sequence[Sequence[WindowTask]]) -> Iterator[WindowTask]:
    """The first of each, then the second of each."""
    return (task for rank in zip_longest(*queues) for task in rank if task is not None)
