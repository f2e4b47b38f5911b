"""Jobs as JSON, and as server-sent events: progress, each segment as it becomes final, and the end.

The id of an event is the number of segments so far. The segments of a job are the same whenever and however often it
runs, so a client that reconnects with the last id it saw misses nothing, even after a restart of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from choral import formats
from choral.errors import ChoralError
from choral.jobs.job_states import State
from choral.jobs.record import JobRecord, Phase, Timings
from choral.options import Priority
from choral.server.jobs.job_store import Snapshot
from choral.server.responses import joined_text

MAX_LISTED_VALUES, MAX_LISTED_CHARACTERS = 20, 200  # of an option, in a listing
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_EVERY_S = 2.0  # proxies close silent connections


class Progress(BaseModel):
    done_s: float
    duration_s: float | None


class JobErrorBody(BaseModel):
    message: str
    type: str | None


class JobBody(BaseModel):
    id: str
    object: Literal["job"] = "job"
    state: State
    phase: Phase | None
    progress: Progress
    audio: str
    options: dict[str, Any]
    priority: Priority
    created_at: float
    started_at: float | None
    ended_at: float | None
    due_at: float | None
    attempts: int
    timings: Timings
    error: JobErrorBody | None
    callback: str | None
    webhook: str | None


class JobListBody(BaseModel):
    object: Literal["list"] = "list"
    data: list[JobBody]


class DeletedJobBody(BaseModel):
    id: str
    object: Literal["job"] = "job"
    deleted: Literal[True] = True


def job_body(record: JobRecord, *, is_brief: bool = False) -> JobBody:
    """`is_brief`: for listings and events, without long texts and lists among the options."""
    options = record.request.options.changed()
    if is_brief:
        options = {name: value for name, value in options.items() if not _is_long(value)}
    return JobBody(
        id=record.id,
        state=record.state,
        phase=record.phase,
        progress=Progress(done_s=record.done_s, duration_s=record.duration_s),
        audio=record.request.audio.name,
        options=options,
        priority=record.request.priority,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        due_at=record.due_at,
        attempts=record.attempts,
        timings=record.timings,
        error=None if record.error is None else JobErrorBody(message=record.error, type=record.error_kind),
        callback=record.request.callback,
        webhook=record.webhook,
    )


def _is_long(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) > MAX_LISTED_VALUES
    return isinstance(value, str) and len(value) > MAX_LISTED_CHARACTERS


def list_json(records: Sequence[JobRecord]) -> str:
    return JobListBody(data=[job_body(record, is_brief=True) for record in records]).model_dump_json()


def job_fields(record: JobRecord, *, is_brief: bool = False) -> dict[str, Any]:
    return job_body(record, is_brief=is_brief).model_dump(mode="json")


async def event_stream(
    snapshots: AsyncIterator[Snapshot], n_seen: int, is_closing: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Events after the segments that the client has seen, until the job ends or the server shuts down."""
    last_fields: dict[str, Any] | None = None
    async for snapshot in _with_keep_alive(snapshots):
        if snapshot is None:
            if is_closing():
                return
            yield KEEP_ALIVE
            continue
        for segment in snapshot.segments[n_seen:]:
            n_seen += 1
            yield _event("segment", formats.segment_fields(segment), n_seen)
        fields = job_fields(snapshot.record, is_brief=True)
        if snapshot.record.has_ended:
            yield _event("end", {**fields, "text": joined_text(snapshot.segments)}, n_seen)
        elif fields != last_fields:
            yield _event("progress", fields, n_seen)
        last_fields = fields


async def _with_keep_alive(snapshots: AsyncIterator[Snapshot]) -> AsyncIterator[Snapshot | None]:
    """The snapshots, and None whenever there was none for a while."""
    upcoming: asyncio.Future[Snapshot] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(snapshots))
            done, _ = await asyncio.wait({upcoming}, timeout=KEEP_ALIVE_EVERY_S)
            if not done:
                yield None
                continue
            try:
                snapshot = upcoming.result()
            except (StopAsyncIteration, ChoralError):  # it has ended, or another client deleted the job
                return
            upcoming = None
            yield snapshot
    finally:
        if upcoming is not None and not upcoming.done():
            upcoming.cancel()
            await asyncio.wait({upcoming})


def _event(name: str, fields: dict[str, Any], number: int) -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()
