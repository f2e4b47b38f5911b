"""What passes between a connection, in the event loop, and its session, on a thread of its own."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from choral.server.realtime.server_events import Event


@dataclass(frozen=True)
class ClientMessage:
    """A message of the client."""

    text: str


@dataclass(frozen=True)
class RejectedMessage:
    """A message that was not taken, and why."""

    why: str
    code: str


@dataclass(frozen=True)
class WindowDone:
    """A window that has left the engine."""

    future: Future[Any]


@dataclass(frozen=True)
class FinishAndClose:
    """What was said is finished, and then the session is over."""

    close_code: int
    why: str


@dataclass(frozen=True)
class ClientDisconnected:
    """The client has left: nothing matters any more."""


Incoming = ClientMessage | RejectedMessage | WindowDone | FinishAndClose | ClientDisconnected


@dataclass(frozen=True)
class AudioReceived:
    """So much sound came, for the account of the key."""

    seconds: float


@dataclass(frozen=True)
class CloseConnection:
    code: int
    reason: str


Outgoing = Event | AudioReceived | CloseConnection
