"""What goes between the pool and a process that decodes: orders with two open files, and answers.

Each is a length of four bytes and as much JSON. Sound itself never goes this way: it is written to the second file.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from dataclasses import dataclass

from choral import errors
from choral.types import LoudnessKind

_LENGTH_BYTES = 4
_MAX_ANSWER_BYTES = 2**20  # a decoder gone mad may say anything


@dataclass(frozen=True)
class Order:
    """Comes with the file to decode and the file for its samples."""

    name: str
    suffix: str
    max_audio_s: float
    loudness: LoudnessKind | None  # to be measured too


@dataclass(frozen=True)
class Answer:
    """Of samples that lie in the file, or of an error by the name of its class."""

    n_samples: int = 0
    peak: float = 0.0  # full scale is 1
    warnings: tuple[str, ...] = ()
    level_db: float = 0.0  # where it was asked for
    decode_s: float = 0.0
    error: str = ""
    text: str = ""

    @classmethod
    def of_error(cls, error: errors.ChoralError) -> Answer:
        return cls(error=type(error).__name__, text=str(error))

    def raise_error(self) -> None:
        if self.error:
            kind = getattr(errors, self.error)
            assert issubclass(kind, errors.ChoralError)
            raise kind(self.text)


def send_order(channel: socket.socket, order: Order, files: tuple[int, int]) -> None:
    body = json.dumps(dataclasses.asdict(order)).encode()
    socket.send_fds(channel, [len(body).to_bytes(_LENGTH_BYTES)], files)
    channel.sendall(body)


def receive_order(channel: socket.socket) -> tuple[Order, int, int] | None:
    """None: the other side is gone, and no order will come any more."""
    head, files, _, _ = socket.recv_fds(channel, _LENGTH_BYTES, maxfds=2)
    if not head:
        return None
    head += _received(channel, _LENGTH_BYTES - len(head))
    body = _received(channel, int.from_bytes(head))
    return Order(**json.loads(body)), files[0], files[1]


def send_answer(channel: socket.socket, answer: Answer) -> None:
    body = json.dumps(dataclasses.asdict(answer)).encode()
    channel.sendall(len(body).to_bytes(_LENGTH_BYTES) + body)


def receive_answer(channel: socket.socket) -> Answer:
    """`EOFError`: the process ended without one."""
    n_bytes = int.from_bytes(_received(channel, _LENGTH_BYTES))
    if n_bytes > _MAX_ANSWER_BYTES:
        raise EOFError
    body = _received(channel, n_bytes)
    fields = json.loads(body)
    return Answer(**{**fields, "warnings": tuple(fields["warnings"])})


def _received(channel: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        try:
            more = channel.recv(n_bytes - len(data))
        except ConnectionError:
            more = b""
        if not more:
            raise EOFError
        data += more
    return data
