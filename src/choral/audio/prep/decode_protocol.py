"""Messages between the prep pool and a decode process: requests with two file descriptors, and replies.

Each message is a length of four bytes and that much JSON. Samples do not travel this way: the process writes them to
the second file of the request.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from dataclasses import dataclass

from choral import errors
from choral.types import LoudnessKind

_LENGTH_BYTES = 4
_MAX_REPLY_BYTES = 2**20  # a corrupted process may send anything


@dataclass(frozen=True)
class DecodeRequest:
    """Sent with the descriptors of the file to decode and the file for its samples."""

    name: str
    suffix: str
    max_audio_s: float
    loudness: LoudnessKind | None  # measured too, unless None


@dataclass(frozen=True)
class DecodeReply:
    """Describes the samples in the file, or an error by the name of its class."""

    n_samples: int = 0
    peak: float = 0.0  # full scale is 1
    warnings: tuple[str, ...] = ()
    level_db: float = 0.0  # if loudness was requested
    decode_s: float = 0.0
    error: str = ""
    text: str = ""

    @classmethod
    def from_error(cls, error: errors.ChoralError) -> DecodeReply:
        return cls(error=type(error).__name__, text=str(error))

    def raise_error(self) -> None:
        if self.error:
            kind = getattr(errors, self.error)
            assert issubclass(kind, errors.ChoralError)
            raise kind(self.text)


def send_request(channel: socket.socket, request: DecodeRequest, fds: tuple[int, int]) -> None:
    body = json.dumps(dataclasses.asdict(request)).encode()
    socket.send_fds(channel, [len(body).to_bytes(_LENGTH_BYTES)], fds)
    channel.sendall(body)


def receive_request(channel: socket.socket) -> tuple[DecodeRequest, int, int] | None:
    """None when the parent has closed the connection."""
    head, fds, _, _ = socket.recv_fds(channel, _LENGTH_BYTES, maxfds=2)
    if not head:
        return None
    head += _receive_exactly(channel, _LENGTH_BYTES - len(head))
    body = _receive_exactly(channel, int.from_bytes(head))
    return DecodeRequest(**json.loads(body)), fds[0], fds[1]


def send_reply(channel: socket.socket, reply: DecodeReply) -> None:
    body = json.dumps(dataclasses.asdict(reply)).encode()
    channel.sendall(len(body).to_bytes(_LENGTH_BYTES) + body)


def receive_reply(channel: socket.socket) -> DecodeReply:
    """Raises `EOFError` when the process ended without a reply."""
    n_bytes = int.from_bytes(_receive_exactly(channel, _LENGTH_BYTES))
    if n_bytes > _MAX_REPLY_BYTES:
        raise EOFError
    fields = json.loads(_receive_exactly(channel, n_bytes))
    return DecodeReply(**{**fields, "warnings": tuple(fields["warnings"])})


def _receive_exactly(channel: socket.socket, n_bytes: int) -> bytes:
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
