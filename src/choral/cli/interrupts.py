"""Being asked to stop: Ctrl-C, and SIGTERM from a service manager or a time limit, which is treated just like it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 128 + 2  # what a shell shows for a program that SIGINT ended
TERMINATED = 128 + 15


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def watch_for_termination() -> None:
    """Raise `Terminated` in the main thread on SIGTERM, unless whoever started the command wants it ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def held_back() -> Iterator[None]:
    """What runs inside is not cut in two: being asked to stop takes effect at its end."""
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def interrupt_code(interrupt: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def _terminate(*_: object) -> NoReturn:
    raise Terminated
