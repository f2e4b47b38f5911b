"""Reads the body of a request within its limits of size and time.

Bytes are counted as they arrive. A request that is too large is refused before it is read if it declares its length,
and otherwise at the limit; one that stalls or takes too long gets a 408.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request

from choral.common.sizes import binary_size
from choral.server.admission import UploadSlot
from choral.server.api_errors import ApiError
from choral.server.settings import ServerSettings


async def limited_body(request: Request, settings: ServerSettings, slot: UploadSlot) -> AsyncGenerator[bytes, None]:
    """The body in pieces, within the limits of size and time."""
    deadline_s = time.monotonic() + settings.upload_timeout_s
    body = request.stream()
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            if slot.is_evicted:
                raise TimeoutError
            async with asyncio.timeout(min(settings.upload_stall_s, left_s)) as slot.timeout:
                piece = await anext(body, None)
        except TimeoutError as error:
            raise _too_slow(settings, slot, left_s) from error
        finally:
            slot.timeout = None
        if piece is None:
            slot.is_reading = False
            return
        _count(piece, settings, slot)
        yield piece


async def read_whole(request: Request, settings: ServerSettings, slot: UploadSlot) -> bytes:
    """A small body within the same limits, with one timer for all of its pieces."""
    now_s, pieces, has_more = asyncio.get_running_loop().time, [], True
    deadline_s = left_s = now_s() + settings.upload_timeout_s
    try:
        async with asyncio.timeout(None) as slot.timeout:
            while has_more:
                if slot.is_evicted:
                    raise TimeoutError
                left_s = deadline_s - now_s()
                slot.timeout.reschedule(now_s() + min(settings.upload_stall_s, left_s))
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                has_more = message.get("more_body", False)
                pieces.append(message.get("body", b""))
                _count(pieces[-1], settings, slot)
    except TimeoutError as error:
        raise _too_slow(settings, slot, left_s) from error
    finally:
        slot.timeout = None
    slot.is_reading = False
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _count(piece: bytes, settings: ServerSettings, slot: UploadSlot) -> None:
    slot.n_bytes += len(piece)
    if slot.n_bytes > settings.max_upload_bytes:
        raise too_large(slot.n_bytes, settings.max_upload_bytes)


def _too_slow(settings: ServerSettings, slot: UploadSlot, left_s: float) -> ApiError:
    """`left_s` of the whole upload when its last piece was awaited."""
    reason = f"stalled for {settings.upload_stall_s:g} s" if left_s > settings.upload_stall_s else "took too long"
    if slot.is_evicted:
        reason = f"was slower than {settings.upload_min_rate:,} bytes/s while other requests waited"
    text = f"the upload {reason}: try again on a faster connection"
    return ApiError(text, status=408, code="upload_timeout")


def too_large(size_bytes: int, limit_bytes: int) -> ApiError:
    return ApiError(
        f"the request has {binary_size(size_bytes)} ({size_bytes:,} bytes), the limit is {binary_size(limit_bytes)} "
        f"({limit_bytes:,} bytes): send a shorter or compressed file",
        status=413,
        param="file",
        code="request_too_large",
    )
