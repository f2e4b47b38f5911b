"""The next item of an iterator that may block, as a future: something else can be waited for at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Lookahead(Generic[Item]):
    """Computes one item whenever it is asked for one: on a thread of its own, or at once where that takes no time."""

    def __init__(self, items: Iterator[Item], *, name: str, on_thread: bool) -> None:
        self._items, self._name, self._on_thread = items, name, on_thread
        self._lock = threading.Lock()
        self._is_closed = False
        self._next: Future[Item | None] = Future()
        self._requests: SimpleQueue[Future[Item | None] | None] | None = None  # of the thread, once there is one

    def next(self) -> Future[Item | None]:
        """The next item, or None at the end. Ask again only when the future is done."""
        with self._lock:
            future: Future[Item | None] = Future()
            self._next = future
            if self._is_closed:
                future.set_exception(CancelledError())
            elif self._on_thread:
                self._request(future)
        if not self._on_thread and not future.done():
            self._compute(future)
        return future

    def close(self) -> None:
        """From any thread: the next item fails with `CancelledError`; the thread ends when the iterator returns."""
        with self._lock:
            self._is_closed = True
            if self._requests is not None:
                self._requests.put(None)
            with suppress(InvalidStateError):  # it has its item
                self._next.set_exception(CancelledError())

    def _request(self, future: Future[Item | None]) -> None:
        if self._requests is None:
            self._requests = SimpleQueue()
            # A daemon: an iterator that is stuck in a read must not keep the program from ending.
            threading.Thread(target=self._run, args=[self._requests], name=self._name, daemon=True).start()
        self._requests.put(future)

    def _run(self, requests: SimpleQueue[Future[Item | None] | None]) -> None:
        while (future := requests.get()) is not None:
            self._compute(future)

    def _compute(self, future: Future[Item | None]) -> None:
        with suppress(InvalidStateError):  # closed meanwhile
            try:
                item = next(self._items, None)
            except BaseException as error:  # raised where the item is used
                future.set_exception(error)
            else:
                future.set_result(item)
