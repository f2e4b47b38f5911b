"""asyncio helpers: a server's loop, cancelling and supervising tasks, and blocking functions on reusable threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

log = logging.getLogger("choral")
T = TypeVar("T")
CANCEL_AGAIN_S = 0.5
MAX_IDLE_THREADS = 64


async def cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended.

    Before Python 3.12, `wait_for` loses a cancellation that arrives as its future completes, so cancel repeatedly.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


class LoopSupervisor:
    """The long-lived loops of a process. One that ends without being cancelled is logged, and is the `failure`.

    A loop handles the errors it expects. Any other means that its work has stopped, which health checks must show.
    """

    def __init__(self) -> None:
        self.failure: str | None = None  # what has stopped

    def start(self, loop: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run the loop as a task, which the caller cancels; `name` completes "… has stopped"."""
        task = asyncio.create_task(loop, name=name)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = f"{task.get_name()} has stopped"
            log.critical("%s: restart this process, and report it", self.failure, exc_info=task.exception())


async def run_in_thread(work: Callable[[], T], name: str) -> T:
    """Run a blocking function on a daemon thread of its own and await its result.

    Unlike the default executor there is no limit on concurrent calls, and interpreter exit does not wait for them.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # cancelled meanwhile
            set_outcome(outcome)

    def run() -> None:
        try:
            resolution: tuple[Callable[[Any], None], Any] = (future.set_result, work())
        except BaseException as error:  # raised again where the result is awaited
            resolution = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, *resolution)

    _start(run, f"choral-{name}")
    return await future


def server_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: its steps are cheaper, most of all under little load. None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Closable(Protocol):
    def close(self) -> None: ...


def close_in_thread(resource: Closable) -> None:
    """Close without waiting for it: closing an unlinked file of gigabytes takes a good part of a second.

    Nothing is awaited, because a second cancellation during the await would leave the resource open.
    """
    asyncio.get_running_loop().run_in_executor(None, resource.close)


@contextlib.contextmanager
def closing_in_thread(resource: Closable) -> Iterator[None]:
    try:
        yield
    finally:
        close_in_thread(resource)


NamedCall = tuple[Callable[[], None], str]
_idle: list[SimpleQueue[NamedCall]] = []  # the inbox of each idle thread
_idle_lock = threading.Lock()  # makes the check against MAX_IDLE_THREADS atomic


def _start(work: Callable[[], None], name: str) -> None:
    """Run on an idle thread or a new one; reuse matters because `Thread.start` blocks until the thread runs."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name=name, daemon=True).start()
    inbox.put((work, name))


def _serve(inbox: SimpleQueue[NamedCall]) -> None:
    while True:
        work, threading.current_thread().name = inbox.get()
        work()
        del work  # release what it references before blocking
        with _idle_lock:
            if len(_idle) >= MAX_IDLE_THREADS:
                return
            _idle.append(inbox)
