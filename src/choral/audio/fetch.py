"""Audio from an http or https address, streamed to a temporary file.

Only these two protocols are ever spoken, also after a redirect. Size and time are bounded, and an answer that
ends before its stated length is an error, not a short recording.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import IO

from choral.audio.spool import size_text, spool
from choral.errors import AudioDenied, AudioError, AudioNotFound, AudioTooLarge, FetchFailed
from choral.remote.transport import RefusedError, UnreachableError, length_of, open_url, read, require_whole, shown

MAX_BYTES = 8 * 2**30
STALL_TIMEOUT_S = 30.0  # no byte for this long
TOTAL_TIMEOUT_S = 3600.0


def fetch(url: str, *, limit_bytes: int = MAX_BYTES, stall_timeout_s: float = STALL_TIMEOUT_S) -> IO[bytes]:
    """The body behind `url` as a seekable file."""
    name = shown(url)
    try:
        with open_url(url, headers={}, timeout_s=stall_timeout_s) as response:
            return spool(_chunks(response, name, limit_bytes), name, limit_bytes)
    except RefusedError as error:
        raise _refused(error, name) from error
    except UnreachableError as error:
        raise FetchFailed(f"could not fetch {name}: {error}; check the address and try again") from error


def _chunks(response: HTTPResponse, name: str, limit_bytes: int) -> Iterator[bytes]:
    expected_bytes = length_of(response)
    if expected_bytes is not None and expected_bytes > limit_bytes:
        raise AudioTooLarge(
            f"{name} has {size_text(expected_bytes)}, the limit is {size_text(limit_bytes)}: "
            "send a shorter or compressed file"
        )
    deadline_s = time.monotonic() + TOTAL_TIMEOUT_S
    received_bytes = 0
    while chunk := read(response):  # what has come, so that a trickle meets the deadline too
        received_bytes += len(chunk)
        yield chunk
        if time.monotonic() > deadline_s:
            raise FetchFailed(f"fetching {name} took over {TOTAL_TIMEOUT_S:.0f} s; download it first")
    require_whole(received_bytes, expected_bytes)


def _refused(error: RefusedError, name: str) -> AudioError:
    if error.status in (404, 410):
        return AudioNotFound(f"{name} does not exist (the server answers {error.status}); check the address")
    if error.status in (401, 403):
        text = f"{name} may not be read (the server answers {error.status}); use an address that needs no login"
        return AudioDenied(text)
    return FetchFailed(f"could not fetch {name}: {error}; check the address")
