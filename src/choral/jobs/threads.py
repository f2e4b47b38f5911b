"""Work that blocks, on a thread of its own, awaited. A program that ends does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


async def in_thread(work: Callable[[], Answer], name: str) -> Answer:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(settle_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():  # nobody waits any more
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
