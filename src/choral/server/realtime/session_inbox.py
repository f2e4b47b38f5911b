"""What arrives at the thread of a session: messages of the client, results of the engine, and requests to end."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClientMessage:
    text: str


@dataclass(frozen=True)
class RejectedMessage:
    """A message of the client that was not read."""

    reason: str
    code: str


@dataclass(frozen=True)
class WindowDone:
    """The engine has finished a window of this session."""

    future: Future[Any]


@dataclass(frozen=True)
class FinishAndClose:
    """Transcribe what was said so far, then close."""

    close_code: int
    reason: str


@dataclass(frozen=True)
class ClientDisconnected:
    """Stop at once."""


Incoming = ClientMessage | RejectedMessage | WindowDone | FinishAndClose | ClientDisconnected
