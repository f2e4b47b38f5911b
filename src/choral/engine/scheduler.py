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

from choral.engine.costs import StepCost
from choral.engine.encoder_cache import EncoderCache
from choral.engine.fair_share import Account, ClassLine, FairShare
from choral.engine.slots import Slots
from choral.engine.steps import Align, Decode, Encode, Job, Prefill, Step

HOLD_UP_S = (
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
        self.jobs: dict[Job, None] = {}  # all of them
        self._fair = FairShare()
        self._ready: dict[Job, None] = {}  # encoded, and not begun
        self._decoding: dict[Account, None] = {}  # have windows that are being decoded
        self._held_up_s = 0.0  # since their last step

    def add(self, job: Job) -> None:
        assert job.n_slots <= self.slots.n_slots
        self.jobs[job] = None
        self._fair.add(job)
        self.n_waiting += 1

    def schedule(self) -> Step | None:
        if self._ready:
            return self._begin()
        if entered := self._enter():
            self._ready.update(dict.fromkeys(entered))
            missing = tuple(job for job in entered if job.key not in self.cache)
            self.n_hits += len(entered) - len({job.key for job in missing})
            return Encode(missing) if missing else self._begin()
        jobs = self._share_of_step()
        return Decode(tuple(jobs)) if jobs else None

    def _begin(self) -> Step:
        known = tuple(job for job in self._ready if not job.n_slots)
        return Align(known) if known else Prefill(tuple(self._ready))

    def begun(self, job: Job) -> None:
        """Its prompt was run: from now on it decodes, and needs its encoder result no more."""
        del self._ready[job]
        self.cache.release(job.key, job)
        account = self._fair.account(job.caller)
        account.decoding[job] = None
        self._decoding[account] = None

    def finish(self, job: Job) -> None:
        """It leaves, wherever it was: done, failed or no longer wanted."""
        del self.jobs[job]
        account = self._fair.account(job.caller)
        if job in account.decoding:
            del account.decoding[job]
            if not account.decoding:
                del self._decoding[account]
        elif job in self._ready:
            del self._ready[job]
            self.cache.release(job.key, job)
        if job in account.entered:
            del account.entered[job]
            self.slots.release(job)
        else:
            account.waiting.remove(job)
            self.n_waiting -= 1
        self._fair.close_if_empty(account)

    def charge(self, step: Step, seconds: float) -> None:
        """Puts the time of a step down to those who had it. To be called while they are still here."""
        match step:
            case Encode(jobs):
                self.encode_cost.learn(len({job.key for job in jobs}), seconds)
            case Decode(jobs):
                self.decode_cost.learn(sum(job.n_slots for job in jobs), seconds)
        self._held_up_s = 0.0 if isinstance(step, Decode) else self._held_up_s + seconds
        shares = [max(1, job.n_slots) for job in step.jobs]
        accounts = [self._fair.account(job.caller) for job in step.jobs]
        self._fair.move_clocks([*accounts, *self._decoding])
        share_s = seconds / sum(shares)
        for account, share in zip(accounts, shares, strict=True):
            self._fair.charge(account, share * share_s)

    def _enter(self) -> list[Job]:
        """The windows that get a place now: one of each caller in turn, then a second, as far as there is room."""
        n_most = self._most_to_enter()
        if not n_most:
            return []
        entered: list[Job] = []
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
        n_in_time = self.encode_cost.most_items(HOLD_UP_S - held_up_s, self.most_encoded_together)
        if not held_up_s:
            return max(self.n_lanes, n_in_time)
        return n_in_time if held_up_s + self.encode_cost.seconds(1) <= HOLD_UP_S else 0

    def _enter_each_once(self, line: ClassLine, entered: list[Job], n_most: int, latest_s: float) -> bool:
        """True: the next one must wait, for room or for its turn, and nobody may pass it."""
        popped: list[Account] = []
        must_wait = False
        while len(entered) < n_most and not must_wait and (account := line.pop()) is not None:
            popped.append(account)
            if self._may_take_more(account):
                job = account.waiting[0]
                is_early = not entered and (account.served_s > latest_s or self._waits_for_company(job))
                must_wait = is_early or job.n_slots > self.slots.n_free
                if not must_wait:
                    entered.append(self._give_place(account))
        for account in popped:
            line.put(account)
        return must_wait

    def _may_take_more(self, account: Account) -> bool:
        """The last places are for callers that have none."""
        n_left = self.slots.n_free - account.waiting[0].n_slots
        return account.n_slots == 0 or n_left >= self.slots.n_slots // RESERVE

    def _waits_for_company(self, job: Job) -> bool:
        """Encoded alone it would leave lanes empty that others, with a place each, could fill."""
        n_together = min(self.n_lanes, self.n_waiting)
        return bool(self._decoding) and 0 < job.n_slots <= self.slots.n_free < n_together and job.key not in self.cache

    def _give_place(self, account: Account) -> Job:
        job = account.waiting.popleft()
        self.n_waiting -= 1
        account.entered[job] = None
        job.slots = self.slots.take(job, job.n_slots)
        self.cache.hold(job.key, job)
        return job

    def _share_of_step(self) -> list[Job]:
        """All that are being decoded; if callers have many and few, the same number of each, and what comes cheap."""
        if not self._decoding:
            return []
        n_fair = min(len(account.decoding) for account in self._decoding)
        queues = [list(account.decoding) for account in self._decoding]
        jobs = [job for queue in queues for job in queue[:n_fair]]
        n_rows = sum(job.n_slots for job in jobs)
        longest_s = LONGER_STEP * self.decode_cost.seconds(n_rows) if self.decode_cost.is_known else math.inf
        for job in in_turn([queue[n_fair:] for queue in queues]):
            n_rows += job.n_slots
            if len(queues) > 1 and self.decode_cost.seconds(n_rows) > longest_s:
                break
            jobs.append(job)
        self._have_had_their_turn(jobs)
        return jobs

    def _have_had_their_turn(self, jobs: list[Job]) -> None:
        for job in jobs:
            decoding = self._fair.account(job.caller).decoding
            del decoding[job]
            decoding[job] = None

    def check_integrity(self) -> None:
        self.slots.check_integrity()
        self.cache.check_integrity()
        accounts = self._fair.accounts()
        entered = [job for account in accounts for job in account.entered]
        decoding = [job for account in accounts for job in account.decoding]
        waiting = [job for account in accounts for job in account.waiting]
        assert set(self.jobs) == {*waiting, *entered}, "a window is lost"
        assert self.n_waiting == len(waiting), "waiting windows are miscounted"
        assert all(account.waiting or account.entered for account in accounts), "an account of nobody is open"
        assert {job for job in entered if job.n_slots} == self.slots.holders, "places are held by others"
        assert set(entered) == {*decoding, *self._ready}, "a window is inside and neither ready nor being decoded"
        assert set(self._ready) == self.cache.holders, "encoder results are held by others"
        assert set(self._decoding) == {account for account in accounts if account.decoding}


def in_turn(queues: Sequence[Sequence[Job]]) -> Iterator[Job]:
    """The first of each, then the second of each."""
    return (job for rank in zip_longest(*queues) for job in rank if job is not None)
