"""Runs chains on an engine: one window of each in flight, several chains side by side, segments out in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from choral.engine.group import AnyEngine
from choral.engine.window import Caller
from choral.longform.chain import Chain
from choral.longform.fallback import Steps
from choral.types import Segment

CHAINS_IN_FLIGHT = 64


def run_chains(
    engine: AnyEngine, caller: Caller, chains: Sequence[Chain], on_moved: Callable[[], None]
) -> Iterator[Segment]:
    """Yields the segments of all chains in the order of the chains; `on_moved` is called after every window."""
    waiting = list(enumerate(chain.run() for chain in chains))[::-1]
    in_flight: dict[Future[Any], tuple[int, Steps[None]]] = {}
    finished: set[int] = set()
    current = n_given = 0
    try:
        while waiting or in_flight:
            while waiting and len(in_flight) < CHAINS_IN_FLIGHT:
                index, steps = waiting.pop()
                if not send(engine, caller, index, steps, None, in_flight):
                    finished.add(index)
            done, _ = wait(in_flight, return_when=FIRST_COMPLETED) if in_flight else (set(), None)
            for future in done:
                index, steps = in_flight.pop(future)
                if not send(engine, caller, index, steps, future, in_flight):
                    finished.add(index)
            on_moved()
            while current < len(chains):
                segments = chains[current].segments
                yield from segments[n_given:]
                n_given = len(segments)
                if current not in finished:
                    break
                current, n_given = current + 1, 0
    finally:
        for future in in_flight:
            engine.cancel(future)


def send(
    engine: AnyEngine,
    caller: Caller,
    index: int,
    steps: Steps[None],
    future: Future[Any] | None,
    in_flight: dict[Future[Any], tuple[int, Steps[None]]],
) -> bool:
    """Gives a chain its result and submits what it asks for next; False when it has ended."""
    try:
        window = steps.send(None if future is None else future.result())
    except StopIteration:
        return False
    in_flight[engine.submit(window, caller)] = (index, steps)
    return True
