"""SIGINT (Ctrl-C) and SIGTERM: both end a command the same way, with the exit code that a shell expects."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by SIGTERM."""


def raise_on_sigterm() -> None:
    """Make SIGTERM raise `Terminated` in the main thread, unless the parent process had it ignored."""
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM only when the block has ended."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS if _in_main_thread()}
    deferred = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in deferred:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in deferred.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


def interrupt_code(interrupt: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _terminate(*_: object) -> NoReturn:
    raise Terminated
