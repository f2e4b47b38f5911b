"""Cancelling windows, and draining, closing and garbage collecting an engine, on a fake runner."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from choral.engine.engine import Engine
from choral.engine.engine_loop import Submitted
from choral.engine.steps import Pending, WindowTask
from choral.engine.window import Caller, Decoded, DecodeParams, Window
from choral.errors import EngineClosed
from fake_runner import SOON_S, FakeRunner, Gate, Plan, Reached, audio, engine_on, window

# Cancelling


def test_a_window_cancelled_while_waiting_is_never_run(engine: Engine, runner: FakeRunner):
    runner.on_call = gate = Gate("encode")
    first, second = engine.submit(window(1)), engine.submit(window(2))
    assert gate.is_reached.wait(SOON_S)
    engine.cancel(second)
    gate.is_open.set()
    with pytest.raises(CancelledError):
        second.result(SOON_S)
    assert first.result(SOON_S).tokens == (0, 1, 2)
    assert engine.drain(SOON_S)
    assert runner.encoded == [1]


def test_a_window_cancelled_while_decoding_frees_its_slots(engine: Engine, runner: FakeRunner):
    runner.plans[1] = Plan(n_tokens=10**9)
    runner.on_call = decoding = Reached("decode")
    endless = engine.submit(window(1, n_slots=8))
    decoding.wait()
    all_slots = engine.submit(window(2, n_slots=8))
    engine.cancel(endless)
    assert all_slots.result(SOON_S).tokens == (0, 1, 2)
    with pytest.raises(CancelledError):
        endless.result(SOON_S)


def test_cancelling_a_finished_window_does_nothing(engine: Engine):
    done = engine.submit(window(1))
    assert done.result(SOON_S)
    engine.cancel(done)
    assert done.result(SOON_S).tokens == (0, 1, 2)
    assert engine.submit(window(2)).result(SOON_S)
    assert engine.stats.windows == 2


def test_cancelling_an_awaiting_task_cancels_its_window(engine: Engine, runner: FakeRunner):
    runner.on_call = gate = Gate("encode")
    engine.submit(window(1))
    assert gate.is_reached.wait(SOON_S)
    pending = engine.submit(window(2))

    async def ask() -> None:
        task = asyncio.ensure_future(asyncio.wait_for(pending, timeout=0.01))
        with pytest.raises(TimeoutError):
            await task

    asyncio.run(ask())
    gate.is_open.set()
    assert engine.drain(SOON_S)
    assert pending.cancelled()
    assert runner.encoded == [1]


# Draining and closing


def test_draining_refuses_new_windows_and_waits(engine: Engine, runner: FakeRunner):
    runner.on_call = gate = Gate("encode")
    futures = [engine.submit(window(i)) for i in range(5)]
    assert gate.is_reached.wait(SOON_S)
    assert engine.drain(0.01) is False
    with pytest.raises(EngineClosed):
        engine.submit(window(9))
    gate.is_open.set()
    assert engine.drain() is True
    assert [future.result(0).tokens for future in futures] == [(0, 1, 2)] * 5


def test_closing_fails_pending_windows(runner: FakeRunner):
    engine = engine_on(runner)
    runner.plans[1] = Plan(n_tokens=10**9)
    runner.on_call = decoding = Reached("decode")
    begun = engine.submit(window(1))
    decoding.wait()
    waiting = [engine.submit(window(2, n_slots=8)) for _ in range(3)]
    engine.close()
    for future in [begun, *waiting]:
        assert isinstance(future.exception(0), EngineClosed)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit(window(3))


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "choral-engine"}


def test_a_collected_engine_ends_its_thread(runner: FakeRunner):
    before = engine_threads()
    engine = engine_on(runner)
    (thread,) = engine_threads() - before
    runner.plans[1] = Plan(n_tokens=10**9)
    pending = engine.submit(window(1))
    del engine
    gc.collect()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert isinstance(pending.exception(0), EngineClosed)


def test_a_closed_engine_frees_its_runner():
    runner = FakeRunner()
    engine = engine_on(runner)
    engine.submit(window(1)).result(SOON_S)
    engine.close()
    kept = weakref.ref(runner)
    del runner
    gc.collect()
    assert kept() is None


def test_finished_windows_are_freed(engine: Engine):
    def ask(number: int) -> weakref.ref[object]:
        clip = audio(number)
        engine.submit(Window(clip, DecodeParams())).result(SOON_S)
        return weakref.ref(clip)

    clips = [ask(number) for number in range(10)]
    engine.submit(window(99)).result(SOON_S)  # the engine's thread itself holds on to the newest
    gc.collect()
    assert [clip() for clip in clips] == [None] * 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_loop_fails_all_pending_windows(engine: Engine, runner: FakeRunner):
    def break_down(record: object) -> None:
        raise ZeroDivisionError

    runner.on_call = gate = Gate("encode")
    both = [engine.submit(window(1)), engine.submit(window(2))]
    engine.observe(break_down)
    gate.is_open.set()
    for pending in both:
        with pytest.raises(EngineClosed):
            pending.result(SOON_S)
    with pytest.raises(EngineClosed):
        engine.submit(window(3))


def test_a_window_submitted_during_shutdown_is_never_left_pending(runner: FakeRunner):
    """A window submitted while the engine's thread ends is refused or fails; it does not stay pending."""
    engine = engine_on(runner)
    loop = engine._loop
    engine.close()
    assert not loop.put(Submitted(WindowTask(window(1), Caller(), Pending())))
    loop.is_over = False  # as a concurrent `put` may still see it
    pending = Pending[Decoded]()
    assert loop.put(Submitted(WindowTask(window(2), Caller(), pending)))
    loop.runner = runner
    loop.end()
    with pytest.raises(EngineClosed):
        pending.result(SOON_S)
