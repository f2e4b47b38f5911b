"""Functions on threads: results and errors are returned, idle threads are reused, none is shared."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from choral.common import aio
from choral.common.aio import MAX_IDLE_THREADS, run_in_thread


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
