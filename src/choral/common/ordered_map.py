"""A function over a sequence of items on several threads, with the results in order.

It is for functions that release the GIL. At most `max_ahead` results exist that were not taken yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, n_threads: int, max_ahead: int, name: str
) -> Generator[Result, None, None]:
    """Items are taken on the thread that iterates. An error of the function is raised in place of its result.

    When the iteration ends, the threads finish what they compute, which nobody waits for.
    """
    tasks: SimpleQueue[tuple[Future[Result], Item] | None] = SimpleQueue()
    pending: deque[Future[Result]] = deque()
    n_started = _start_threads(partial(_work, function, tasks), n_threads, name)
    try:
        for item in items:
            future: Future[Result] = Future()
            tasks.put((future, item))
            pending.append(future)
            while pending and (len(pending) >= max_ahead or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        for _ in range(n_started):
            tasks.put(None)


def _start_threads(run: Callable[[], None], n_threads: int, name: str) -> int:
    """As many of them as the memory limit of the process allows; none is an error."""
    for index in range(n_threads):
        try:  # daemons: one that is stuck in a read must not keep the program from ending
            threading.Thread(target=run, name=f"{name}-{index}", daemon=True).start()
        except RuntimeError:
            if index == 0:
                raise
            return index
    return n_threads


def _work(function: Callable[[Item], Result], tasks: SimpleQueue[tuple[Future[Result], Item] | None]) -> None:
    while (task := tasks.get()) is not None:
        future, item = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised where the result is used
                future.set_exception(error)
        del future, task  # a waiting thread must not keep the last result alive
