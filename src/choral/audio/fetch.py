"""Audio from an http or https address, streamed to a temporary file.

Only these two protocols are ever spoken, also after a redirect. Size and time are bounded, and an answer that
ends before its stated length is an error, not a short recording.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import IO

from choral.audio.spool import MEMORY_BYTES, size_text, spool
from choral.errors import AudioDenied, AudioError, AudioNotFound, AudioRefused, AudioTooLarge, FetchFailed
from choral.remote.guard import Guard
from choral.remote.lifeline import Lifeline
from choral.remote.transport import (
    ForbiddenError,
    RefusedError,
    UnreachableError,
    length_of,
    open_url,
    read,
    require_whole,
    shown,
)

MAX_BYTES = 8 * 2**30
STALL_TIMEOUT_S = 30.0  # no byte for this long
TOTAL_TIMEOUT_S = 3600.0


def fetch(
    url: str,
    *,
    limit_bytes: int = MAX_BYTES,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    total_timeout_s: float = TOTAL_TIMEOUT_S,
    guard: Guard | None = None,
    lifeline: Lifeline | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> IO[bytes]:
    """The body behind `url` as a seekable file, in memory up to `memory_bytes`.

    A guarded fetch goes only where the guard permits, and its lifeline ends it at once, from any thread.
    """
    name = shown(url)
    if guard is not None and lifeline is None:
        lifeline = Lifeline()
    clock = _Clock(time.monotonic() + total_timeout_s, lifeline)
    try:
        with (
            lifeline.lasting(total_timeout_s) if lifeline is not None else contextlib.nullcontext(),
            open_url(url, headers={}, timeout_s=stall_timeout_s, guard=guard, lifeline=lifeline) as response,
        ):
            return spool(_chunks(response, name, limit_bytes, clock), name, limit_bytes, memory_bytes)
    except ForbiddenError as error:
        raise AudioRefused(f"{name} is not fetched: {error}") from error
    except RefusedError as error:
        raise _refused(error, name) from error
    except (UnreachableError, TimeoutError) as error:
        if clock.is_over:
            raise FetchFailed(f"fetching {name} took over {total_timeout_s:g} s; download it first") from error
        raise FetchFailed(f"could not fetch {name}: {error}; check the address and try again") from error


@dataclass(frozen=True)
class _Clock:
    deadline_s: float
    lifeline: Lifeline | None

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline_s or (self.lifeline is not None and self.lifeline.is_cut)


def _chunks(response: HTTPResponse, name: str, limit_bytes: int, clock: _Clock) -> Iterator[bytes]:
    expected_bytes = length_of(response)
    if expected_bytes is not None and expected_bytes > limit_bytes:
        raise AudioTooLarge(
            f"{name} has {size_text(expected_bytes)}, the limit is {size_text(limit_bytes)}: "
            "send a shorter or compressed file"
        )
    received_bytes = 0
    while chunk := read(response):  # what has come, so that a trickle meets the deadline too
        received_bytes += len(chunk)
        yield chunk
        if clock.is_over:
            break
    if clock.is_over:  # a connection that was cut looks like one that ended
        raise TimeoutError
    require_whole(received_bytes, expected_bytes)


def _refused(error: RefusedError, name: str) -> AudioError:
    if error.status in (404, 410):
        return AudioNotFound(f"{name} does not exist (the server answers {error.status}); check the address")
    if error.status in (401, 403):
        text = f"{name} may not be read (the server answers {error.status}); use an address that needs no login"
        return AudioDenied(text)
    text = f"could not fetch {name}: {error}; check the address"
    return FetchFailed(text, is_final=error.status is not None)
