"""Tasks and threads that end when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

Answer = TypeVar("Answer")
INSIST_EVERY_S = 0.5
MAX_IDLE_THREADS = 64


async def cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels them until they have ended: before Python 3.12 a cancel that meets the end of a wait is forgotten."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=INSIST_EVERY_S)


async def run_in_thread(work: Callable[[], Answer], name: str) -> Answer:
    """Work that blocks, on a thread that does nothing else meanwhile; a program that ends does not wait for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(settle_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():  # somebody still waits
            settle_answer(value)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], Any] = (answer.set_result, work())
        except BaseException as error:  # whoever waits hears of it, whatever it is
            settled = (answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *settled)

    _begin(run, f"choral-{name}")
    return await answer


Errand = tuple[Callable[[], None], str]
_idle: list[SimpleQueue[Errand]] = []  # of threads that have done their work
_resting = threading.Lock()  # so that no more of them stay than may


def _begin(work: Callable[[], None], name: str) -> None:
    """On a thread that has nothing to do, or a new one: starting one holds up whoever does until it runs."""
    try:
        errands = _idle.pop()
    except IndexError:
        errands = SimpleQueue()
        threading.Thread(target=_do_errands, args=(errands,), name=name, daemon=True).start()
    errands.put((work, name))


def _do_errands(errands: SimpleQueue[Errand]) -> None:
    while True:
        work, threading.current_thread().name = errands.get()
        work()
        del work  # and what it holds, before the next one comes
        with _resting:
            if len(_idle) >= MAX_IDLE_THREADS:
                return
            _idle.append(errands)
