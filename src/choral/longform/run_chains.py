"""Runs chains on an engine: submits the window each chain yields and sends the result back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.window import Caller
from choral.errors import ChoralError
from choral.longform.chain import Chain
from choral.longform.chain_types import Steps
from choral.longform.lookahead import Lookahead
from choral.transcript import Segment

MAX_CHAINS_IN_FLIGHT = 64


class ChainRunner:
    """Runs all chains of a request, each from the moment it is known, with one window of each in flight.

    `on_window` is called after windows.
    """

    def __init__(
        self, engine: AnyEngine, caller: Caller, chains: Lookahead[Chain], on_window: Callable[[], None]
    ) -> None:
        self._engine, self._caller, self._chains, self._on_window = engine, caller, chains, on_window
        self._next_chain: Future[Chain | None] | None = None  # None: there are no more
        self._failure: ChoralError | None = None
        self._in_flight: dict[Future[Any], RunningChain] = {}
        self._ordered: deque[RunningChain] = deque()  # from the first that may have more segments to yield

    def segments(self) -> Iterator[Segment]:
        """The segments of all chains in order.

        If the next chain cannot be found, those before it are finished, and then the error is raised.
        """
        try:
            self._next_chain = self._chains.next()
            while self._next_chain is not None or self._in_flight:
                self._wait()
                yield from self._final_segments()
            if self._failure is not None:
                raise self._failure
        finally:
            self._chains.close()
            for future in self._in_flight:
                self._engine.cancel(future)

    def _wait(self) -> None:
        """Waits for windows or the next chain, and continues with them."""
        awaited: set[Future[Any]] = set(self._in_flight)
        if self._next_chain is not None and len(self._in_flight) < MAX_CHAINS_IN_FLIGHT:
            awaited.add(self._next_chain)
        done, _ = wait(awaited, return_when=FIRST_COMPLETED)
        if self._next_chain in done:
            self._start_next(self._next_chain)
        windows = done & self._in_flight.keys()
        for future in windows:
            self._advance(self._in_flight.pop(future), future.result())
        if windows:
            self._on_window()

    def _start_next(self, found: Future[Chain | None]) -> None:
        try:
            chain = found.result()
        except ChoralError as error:
            self._failure, chain = error, None
        if chain is None:
            self._next_chain = None
            return
        self._next_chain = self._chains.next()
        running = RunningChain(chain)
        self._ordered.append(running)
        self._advance(running, None)

    def _advance(self, running: RunningChain, result: object) -> None:
        """Sends a chain its result and submits its next window."""
        try:
            window = running.steps.send(result)
        except StopIteration:
            running.has_ended = True
            return
        self._in_flight[self._engine.submit(window, self._caller)] = running

    def _final_segments(self) -> Iterator[Segment]:
        while self._ordered:
            first = self._ordered[0]
            yield from first.new_segments()
            if not first.has_ended:
                return
            self._ordered.popleft()


class RunningChain:
    def __init__(self, chain: Chain) -> None:
        self.steps: Steps[None] = chain.run()
        self.has_ended = False
        self._segments, self._n_yielded = chain.segments, 0

    def new_segments(self) -> Iterator[Segment]:
        """Those that became final since the last call."""
        new = self._segments[self._n_yielded :]
        self._n_yielded = len(self._segments)
        yield from new
