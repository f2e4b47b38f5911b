"""Runs chains on an engine: submits the window each chain yields and sends the result back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from choral.engine.any_engine import AnyEngine
from choral.engine.window import Caller
from choral.longform.chain import Chain
from choral.longform.chain_types import Steps
from choral.types import Segment

MAX_CHAINS_IN_FLIGHT = 64


def run_chains(
    engine: AnyEngine, caller: Caller, chains: Sequence[Chain], on_window: Callable[[], None]
) -> Iterator[Segment]:
    """Yields the segments of all chains in order, with one window of each chain in flight.

    `on_window` is called after every window.
    """
    waiting = list(enumerate(chain.run() for chain in chains))[::-1]
    in_flight: dict[Future[Any], tuple[int, Steps[None]]] = {}
    finished: set[int] = set()
    current = n_yielded = 0
    try:
        while waiting or in_flight:
            while waiting and len(in_flight) < MAX_CHAINS_IN_FLIGHT:
                index, steps = waiting.pop()
                if not advance(engine, caller, index, steps, None, in_flight):
                    finished.add(index)
            done, _ = wait(in_flight, return_when=FIRST_COMPLETED) if in_flight else (set(), None)
            for future in done:
                index, steps = in_flight.pop(future)
                if not advance(engine, caller, index, steps, future, in_flight):
                    finished.add(index)
            on_window()
            while current < len(chains):
                segments = chains[current].segments
                yield from segments[n_yielded:]
                n_yielded = len(segments)
                if current not in finished:
                    break
                current, n_yielded = current + 1, 0
    finally:
        for future in in_flight:
            engine.cancel(future)


def advance(
    engine: AnyEngine,
    caller: Caller,
    index: int,
    steps: Steps[None],
    future: Future[Any] | None,
    in_flight: dict[Future[Any], tuple[int, Steps[None]]],
) -> bool:
    """Sends a chain its result and submits its next window; False when the chain has ended."""
    try:
        window = steps.send(None if future is None else future.result())
    except StopIteration:
        return False
    in_flight[engine.submit(window, caller)] = (index, steps)
    return True
