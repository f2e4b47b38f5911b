"""What passes between scheduler and runner: window tasks, the steps they are batched into, and the outcomes.

`Encode` turns audio into features, `Prefill` runs prompts, `Decode` adds a token to each window, and `Align` aligns
known texts or detects languages, in one pass and without slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from choral.engine.window import Caller, DecodeParams, Params, Result, Window


class Pending(Future[Result]):
    """The future result of a window: wait for it with `result()`, or `await` it."""

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self).__await__()


@dataclass(eq=False)
class WindowTask:
    """A window in the engine."""

    window: Window[Any]
    caller: Caller
    future: Pending[Any]
    slots: tuple[int, ...] = field(default=(), init=False)  # assigned at admission
    n_slots: int = field(init=False)  # one for each beam or sample; 0: it is not decoded token by token
    key: bytes = field(init=False, repr=False)  # of its audio

    def __post_init__(self) -> None:
        self.n_slots = n_slots_of(self.window.params)
        self.key = self.window.audio.key


def n_slots_of(params: Params[Any]) -> int:
    return params.n_candidates if isinstance(params, DecodeParams) else 0


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
    has_tokens: bool = False  # the host has seen its first token; only observers look at this


@dataclass(frozen=True)
class Finished:
    result: object


@dataclass(frozen=True)
class Failed:
    error: BaseException


Outcome = InProgress | Finished | Failed
