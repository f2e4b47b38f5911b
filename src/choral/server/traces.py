"""The parts of a request as the code that does them tells of them: `part("prep")`, `tell("choral.audio_s", 3.2)`.

Where nobody traces, both do nothing. The trace of a request is found through the context of its task, so parts need not
be handed it; `otel` is what makes spans of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol

Fact = str | int | float


class Trace(Protocol):
    """Of one request."""

    def part(self, name: str) -> AbstractContextManager[None]: ...

    def tell(self, name: str, fact: Fact) -> None: ...

    def answered(self, name: str, status: int) -> None:
        """What the request turned out to be, and its status."""


class Tracing(Protocol):
    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[None]: ...


current: ContextVar[Trace | None] = ContextVar("choral_trace", default=None)


def part(name: str) -> AbstractContextManager[None]:
    trace = current.get()
    return nullcontext() if trace is None else trace.part(name)


def tell(name: str, fact: Fact) -> None:
    if (trace := current.get()) is not None:
        trace.tell(name, fact)
