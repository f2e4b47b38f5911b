"""What passes between scheduler and runner: a task is a window under way, a step is what is done next with some.

`Encode` turns audio into features, `Prefill` runs prompts and takes places in the batch, `Decode` goes one token
further, `Align` runs a known text, or the question which language it is, in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from choral.engine.window import Caller, DecodeParams, Result, Window


class Pending(Future[Result]):
    """The result of a window to come: wait for it with `result()`, or `await` it.

    Where it was asked for, `updates` gives the tokens decided so far, again and again, while the window is decoded.
    """

    def __init__(self, *, is_watched: bool = False) -> None:
        super().__init__()
        self._updates: SimpleQueue[tuple[int, ...] | None] | None = SimpleQueue() if is_watched else None
        self.add_done_callback(lambda _: self.show(None))

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self).__await__()

    @property
    def is_watched(self) -> bool:
        return self._updates is not None

    def show(self, tokens: tuple[int, ...] | None) -> None:
        """Never waits: whoever watches slowly slows nobody."""
        if self._updates is not None:
            self._updates.put(tokens)

    def updates(self) -> Iterator[tuple[int, ...]]:
        """The top_k text so far, after every step, until there is a result or a failure. For one reader."""
        assert self._updates is not None, "submit with watch=True to see the tokens on their way"
        while (tokens := self._updates.get()) is not None:
            yield tokens


@dataclass(eq=False)
class WindowTask:
    window: Window[Any]
    caller: Caller
    future: Pending[Any]
    slots: tuple[int, ...] = field(default=(), init=False)  # its places, once it has them
    n_slots: int = field(init=False)
    key: bytes = field(init=False, repr=False)  # of its audio

    def __post_init__(self) -> None:
        """Only what is decoded token by token needs places: one for each beam or sample."""
        params = self.window.params
        self.n_slots = params.n_candidates if isinstance(params, DecodeParams) else 0
        self.key = self.window.audio.key


@dataclass(frozen=True)
class Encode:
    tasks: tuple[WindowTask, ...]


@dataclass(frozen=True)
class Prefill:
    tasks: tuple[WindowTask, ...]


@dataclass(frozen=True)
class Decode:
    tasks: tuple[WindowTask, ...]


@dataclass(frozen=True)
class Align:
    tasks: tuple[WindowTask, ...]


Step = Encode | Prefill | Decode | Align


@dataclass(frozen=True)
class InProgress:
    tokens: tuple[int, ...] | None  # the top_k text so far; None: nobody asked for it


@dataclass(frozen=True)
class Finished:
    result: object


@dataclass(frozen=True)
class Failed:
    error: BaseException


Outcome = InProgress | Finished | Failed
