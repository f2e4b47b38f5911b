"""Accounts of callers: the least served first, new callers level, classes weighted."""

from __future__ import annotations

import pytest

from choral.engine.fair_share import Account, FairShare
from choral.engine.steps import Pending, WindowTask
from choral.engine.window import Caller, DecodeParams, Window
from fake_runner import audio


def with_window(fair: FairShare, caller: Caller) -> Account:
    fair.add(WindowTask(Window(audio(0), DecodeParams()), caller, Pending()))
    return fair.account(caller)


def served(fair: FairShare, *seconds_of: tuple[Account, float]) -> None:
    fair.advance_clocks([account for account, _ in seconds_of])
    for account, seconds in seconds_of:
        fair.charge(account, seconds)


def queued(fair: FairShare, some: Account) -> list[Account]:
    queue = fair.queue_of(some)
    found = []
    while (account := queue.pop()) is not None:
        found.append(account)
    for account in found:
        queue.put(account)
    return found


def test_the_least_served_account_is_first_then_by_arrival():
    fair = FairShare()
    a, b, c = (with_window(fair, Caller()) for _ in range(3))
    assert queued(fair, a) == [a, b, c]
    served(fair, (a, 2.0))
    served(fair, (b, 1.0))
    assert queued(fair, a) == [c, b, a]


def test_an_account_is_queued_once_and_only_while_it_waits():
    fair = FairShare()
    caller = Caller()
    account = with_window(fair, caller)
    with_window(fair, caller)
    assert queued(fair, account) == [account]
    account.waiting.clear()
    assert queued(fair, account) == []
    with_window(fair, caller)
    assert queued(fair, account) == [account]


def test_a_charge_moves_an_account_that_is_queued():
    fair = FairShare()
    a, b = with_window(fair, Caller()), with_window(fair, Caller())
    assert fair.queue_of(a).pop() is a
    fair.queue_of(a).put(a)
    served(fair, (a, 1.0))
    assert fair.queue_of(a).pop() is b


def test_a_new_account_starts_level_with_the_least_served():
    fair = FairShare()
    much, little = with_window(fair, Caller()), with_window(fair, Caller())
    for _ in range(10):
        served(fair, (much, 0.9), (little, 0.1))
    newcomer = with_window(fair, Caller())
    assert newcomer.served_s == pytest.approx(0.9)  # nine steps of the one that had little
    assert queued(fair, newcomer)[0] is newcomer


def test_absent_account_gains_no_credit():
    fair = FairShare()
    caller = Caller()
    away, here = with_window(fair, caller), with_window(fair, Caller())
    away.waiting.clear()
    fair.close_if_empty(away)
    for _ in range(5):
        served(fair, (here, 1.0))
    assert with_window(fair, caller).served_s == 4.0


def test_start_level_of_new_accounts_never_decreases():
    fair = FairShare()
    a, b = with_window(fair, Caller()), with_window(fair, Caller())
    served(fair, (a, 5.0))
    served(fair, (a, 5.0))
    served(fair, (b, 1.0))
    assert with_window(fair, Caller()).served_s == 5.0


def test_an_account_closes_with_its_last_window():
    fair = FairShare()
    account = with_window(fair, Caller())
    task = account.waiting.popleft()
    account.admitted[task] = None
    fair.close_if_empty(account)
    assert fair.accounts() == [account]
    del account.admitted[task]
    fair.close_if_empty(account)
    assert fair.accounts() == []


def test_interactive_callers_get_four_times_the_time():
    fair = FairShare()
    batch, interactive = with_window(fair, Caller("batch")), with_window(fair, Caller("interactive"))
    names = {queue: name for name, queue in fair.queues.items()}
    order = []
    for _ in range(10):
        first = fair.queues_in_turn()[0]
        order.append(names[first][0])
        served(fair, (interactive if names[first] == "interactive" else batch, 1.0))
    assert "".join(order) == "ibiiiibiii"


def test_a_class_that_was_empty_starts_level():
    fair = FairShare()
    batch = with_window(fair, Caller("batch"))
    served(fair, (batch, 100.0))
    interactive = with_window(fair, Caller("interactive"))
    assert fair.queue_of(interactive).served_s == 100.0
    served(fair, (interactive, 1.0))
    assert fair.queues_in_turn() == [fair.queue_of(batch), fair.queue_of(interactive)]
