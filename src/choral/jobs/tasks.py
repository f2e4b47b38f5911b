"""Tasks and threads that end when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
INSIST_EVERY_S = 0.5


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels them until they have ended: before Python 3.12 a cancel that meets the end of a wait is forgotten."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=INSIST_EVERY_S)


async def in_thread(work: Callable[[], Answer], name: str) -> Answer:
    """Work that blocks, on a thread of its own; a program that ends does not wait for it."""
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

    threading.Thread(target=run, name=f"choral-{name}", daemon=True).start()
    return await answer
