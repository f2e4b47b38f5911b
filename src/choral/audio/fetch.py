"""Audio from an http or https address, streamed to a temporary file.

Only these two protocols are ever spoken, also after a redirect. Size and time are bounded, and an answer that
ends before its stated length is an error, not a short recording.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import IO

from choral.audio.spool import size_text, spool
from choral.errors import AudioDenied, AudioError, AudioNotFound, AudioTooLarge, FetchFailed

MAX_BYTES = 8 * 2**30
STALL_TIMEOUT_S = 30.0  # no byte for this long
TOTAL_TIMEOUT_S = 3600.0
CHUNK_BYTES = 2**18


def fetch(url: str, *, limit_bytes: int = MAX_BYTES, stall_timeout_s: float = STALL_TIMEOUT_S) -> IO[bytes]:
    """The body behind `url` as a seekable file."""
    name = display_name(url)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "choral", "Accept-Encoding": "identity"})
        with _opener().open(request, timeout=stall_timeout_s) as response:
            return spool(_chunks(response, name, limit_bytes), name, limit_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(error.code, name) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise FetchFailed(f"could not fetch {name}: {reason}; check the address and try again") from error


def display_name(url: str) -> str:
    """The address without user, password and query, which may hold secrets."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _chunks(response: HTTPResponse, name: str, limit_bytes: int) -> Iterator[bytes]:
    expected_bytes = response.length  # None: not stated
    if expected_bytes is not None and expected_bytes > limit_bytes:
        raise AudioTooLarge(
            f"{name} has {size_text(expected_bytes)}, the limit is {size_text(limit_bytes)}: "
            "send a shorter or compressed file"
        )
    deadline_s = time.monotonic() + TOTAL_TIMEOUT_S
    received_bytes = 0
    while chunk := response.read1(CHUNK_BYTES):  # what has come, so that a trickle meets the deadline too
        received_bytes += len(chunk)
        yield chunk
        if time.monotonic() > deadline_s:
            raise FetchFailed(f"fetching {name} took over {TOTAL_TIMEOUT_S:.0f} s; download it first")
    if expected_bytes is not None and received_bytes < expected_bytes:
        raise FetchFailed(f"{name} broke off after {received_bytes} of {expected_bytes} bytes; try again")


def _refused(status: int, name: str) -> AudioError:
    if status in (404, 410):
        return AudioNotFound(f"{name} does not exist (the server answers {status}); check the address")
    if status in (401, 403):
        return AudioDenied(f"{name} may not be read (the server answers {status}); use an address that needs no login")
    return FetchFailed(f"could not fetch {name}: the server answers {status}; try again later")
