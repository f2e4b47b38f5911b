"""What passes between a connection, in the event loop, and its session, on a thread of its own."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from choral.server.realtime.events import Event


@dataclass(frozen=True)
class Text:
    """A message of the client."""

    text: str


@dataclass(frozen=True)
class Refused:
    """A message that was not taken, and why."""

    why: str
    code: str


@dataclass(frozen=True)
class Answered:
    """A window that has left the engine."""

    future: Future[Any]


@dataclass(frozen=True)
class Finish:
    """What was said is finished, and then the session is over."""

    close_code: int
    why: str


@dataclass(frozen=True)
class Gone:
    """The client has left: nothing matters any more."""


Incoming = Text | Refused | Answered | Finish | Gone


@dataclass(frozen=True)
class Heard:
    """So much sound came, for the account of the key."""

    seconds: float


@dataclass(frozen=True)
class Close:
    code: int
    reason: str


Outgoing = Event | Heard | Close
