"""Functions on threads, whose results and errors are returned, and loops, whose end is noticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from choral.common import aio
from choral.common.aio import MAX_IDLE_THREADS, LoopSupervisor, cancel_tasks, closing_in_thread, run_in_thread


def whoami() -> tuple[int, str]:
    return threading.get_ident(), threading.current_thread().name


def test_an_idle_thread_is_reused() -> None:
    async def one_after_another() -> list[tuple[int, str]]:
        found = []
        n_idle = max(1, len(aio._idle))
        for name in ("first", "second", "third"):
            found.append(await run_in_thread(whoami, name))
            while len(aio._idle) < n_idle:  # it becomes idle after it has returned the result
                await asyncio.sleep(0.01)
        return found

    found = asyncio.run(one_after_another())
    assert len({number for number, _ in found}) == 1
    assert [name for _, name in found] == ["choral-first", "choral-second", "choral-third"]


def test_each_call_has_its_own_thread_and_few_stay_idle() -> None:
    n_together = MAX_IDLE_THREADS + 10
    barrier = threading.Barrier(n_together, timeout=30)  # opens when all of them run at once

    async def together() -> int:
        await asyncio.gather(*(run_in_thread(barrier.wait, "crowd") for _ in range(n_together)))
        for _ in range(100):
            crowd = [thread for thread in threading.enumerate() if thread.name == "choral-crowd"]
            if len(crowd) <= MAX_IDLE_THREADS:
                break
            await asyncio.sleep(0.05)
        return len(crowd)

    assert asyncio.run(together()) <= MAX_IDLE_THREADS


def test_errors_are_raised_and_the_thread_survives() -> None:
    async def fail_and_go_on() -> tuple[int, str]:
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 // 0, "wrong")
        return await run_in_thread(whoami, "right")

    assert asyncio.run(fail_and_go_on())[1] == "choral-right"


def test_exit_does_not_wait_for_running_threads() -> None:
    program = """
import asyncio, time
from choral.common.aio import run_in_thread

async def main():
    await run_in_thread(lambda: None, "done")
    sleeper = asyncio.create_task(run_in_thread(lambda: time.sleep(60), "asleep"))
    await asyncio.sleep(0.1)
    sleeper.cancel()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_loop_that_ends_is_a_failure_unless_it_was_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def run(loop: Callable[[], Coroutine[Any, Any, None]]) -> str | None:
        loops = LoopSupervisor()
        task = loops.start(loop(), "the loop")
        await asyncio.sleep(0.01)
        await cancel_tasks([task])
        return loops.failure

    async def fails() -> None:
        raise OverflowError("port must be 0-65535")

    async def returns() -> None:
        pass

    async def goes_on() -> None:
        await asyncio.sleep(60)

    assert asyncio.run(run(goes_on)) is None
    assert not caplog.messages
    assert asyncio.run(run(returns)) == "the loop has stopped"
    assert asyncio.run(run(fails))
    assert caplog.messages == ["the loop has stopped: restart this process, and report it"] * 2
    assert "OverflowError" in caplog.text


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_resources_are_closed_on_another_thread_without_waiting(is_cancelled: bool) -> None:
    closed = threading.Event()

    class SlowToClose:
        def close(self) -> None:
            assert threading.current_thread() is not threading.main_thread()
            assert may_close.wait(10)
            closed.set()

    async def use() -> None:
        with closing_in_thread(SlowToClose()):
            await asyncio.sleep(60 if is_cancelled else 0)

    async def run() -> None:
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        if is_cancelled:
            task.cancel()
        await asyncio.wait({task})
        assert not closed.is_set()
        may_close.set()

    may_close = threading.Event()
    asyncio.run(run())
    assert closed.is_set()
