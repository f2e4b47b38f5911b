"""A job as server-sent events: how far it is, each segment as it becomes final, and the end.

The id of an event is the number of segments so far. A segment's text and number do not depend on when or how often a
job is run, so whoever comes back with the last id it saw gets what it missed, also after a restart of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from choral.errors import ChoralError
from choral.server.jobs.job_store import Snapshot
from choral.server.jobs.job_views import job_fields, segment_fields
from choral.server.responses import joined_text

STILL_HERE = b": still here\n\n"
STILL_HERE_EVERY_S = 2.0  # proxies close what is silent for long


async def event_stream(
    snapshots: AsyncIterator[Snapshot], n_known: int, is_closing: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """From the segment after those that are known, until the job has ended or the server is to end."""
    told: dict[str, Any] | None = None
    async for snapshot in ticking(snapshots):
        if snapshot is None:
            if is_closing():
                return
            yield STILL_HERE
            continue
        for segment in snapshot.segments[n_known:]:
            n_known += 1
            yield event("segment", segment_fields(segment), n_known)
        fields = job_fields(snapshot.record)
        if snapshot.record.has_ended:
            yield event("end", {**fields, "text": joined_text(snapshot.segments)}, n_known)
        elif fields != told:
            yield event("progress", fields, n_known)
        told = fields


async def ticking(snapshots: AsyncIterator[Snapshot]) -> AsyncIterator[Snapshot | None]:
    """The snapshots, and None whenever none has come for a while."""
    coming: asyncio.Future[Snapshot] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(snapshots))
            done, _ = await asyncio.wait({coming}, timeout=STILL_HERE_EVERY_S)
            if not done:
                yield None
                continue
            try:
                snapshot = coming.result()
            except StopAsyncIteration:
                return
            except ChoralError:  # it was forgotten by somebody else: there is no more to tell
                return
            coming = None
            yield snapshot
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})


def event(name: str, fields: dict[str, Any], number: int) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()
