"""Jobs over HTTP: submit, look, list, follow, cancel and forget. Where a job runs is the store's affair.

With API keys every caller has jobs of its own: their ids begin with a mark of the key's name, and other ids are a 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from choral import formats
from choral.errors import JobNotFound
from choral.jobs.request import new_id
from choral.server.api_errors import ApiError
from choral.server.jobs import schema
from choral.server.jobs.events import event_stream
from choral.server.jobs.job_billing import owner_prefix
from choral.server.jobs.job_form import read_job_form
from choral.server.jobs.job_store import JobStore, NewJob
from choral.server.jobs.job_views import job_fields, result_fields
from choral.server.quota import principal_of
from choral.server.service import Service
from choral.server.tracing import span

ResultFormat = Literal["text", "json", "verbose_json", "srt", "vtt", "tsv"]
MEDIA_TYPES = {
    "text": "text/plain",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "tsv": "text/tab-separated-values",
}
MOST_LISTED = 1000
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def make_router(service: Service, store: JobStore) -> APIRouter:
    """The store is open already; the server's end gives what it has under way time to finish."""

    @asynccontextmanager
    async def draining(app: object) -> AsyncIterator[None]:
        yield
        await store.drain(service.settings.drain_s)

    router = APIRouter(tags=["jobs"], lifespan=draining)

    @router.post("/v1/jobs", status_code=202, **schema.submit())
    async def submit(request: Request) -> Response:
        return await _submit(service, store, request)

    @router.get("/v1/jobs", **schema.newest())
    async def newest(request: Request, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50) -> Response:
        records = await store.newest(limit, _mark(request))
        return JSONResponse({"object": "list", "data": [job_fields(record) for record in records]})

    @router.get("/v1/jobs/{job_id}", **schema.show())
    async def show(request: Request, job_id: str, response_format: ResultFormat | None = None) -> Response:
        _require_own(request, job_id)
        return await _show(store, job_id, response_format)

    @router.delete("/v1/jobs/{job_id}", **schema.remove())
    async def remove(request: Request, job_id: str) -> Response:
        _require_own(request, job_id)
        if not (await store.show(job_id)).has_ended:
            return JSONResponse(job_fields(await store.cancel(job_id)))
        await store.forget(job_id)
        return JSONResponse({"id": job_id, "object": "job", "deleted": True})

    @router.get("/v1/jobs/{job_id}/events", **schema.events())
    async def events(request: Request, job_id: str) -> Response:
        _require_own(request, job_id)
        n_known = _last_event(request)
        await store.show(job_id)  # what does not exist is told before the stream begins
        stream = event_stream(store.follow(job_id), n_known, lambda: service.requests.is_closing)
        return StreamingResponse(stream, media_type="text/event-stream", headers=EVENT_HEADERS)

    return router


async def _submit(service: Service, store: JobStore, request: Request) -> Response:
    service.uploads.require_capacity()
    await store.require_capacity()
    async with AsyncExitStack() as stack:
        stack.enter_context(service.uploads.admit())
        with span("read the upload"):
            order = await stack.enter_async_context(read_job_form(request, service.settings))
        with span("keep the job"):
            job = NewJob(
                id=_mark(request) + new_id(),
                audio=order.audio,
                name=order.name,
                options=order.options,
                priority=order.priority,
                callback=order.callback,
            )
            record = await store.submit(job)
    return JSONResponse(job_fields(record), 202, {"Location": f"/v1/jobs/{record.id}"})


async def _show(store: JobStore, job_id: str, response_format: ResultFormat | None) -> Response:
    record = await store.show(job_id)
    if response_format is not None:
        record.require_success()
        text = await asyncio.to_thread(formats.render, await store.result(job_id), response_format)
        media_type = MEDIA_TYPES.get(response_format)
        return Response(text, media_type=f"{media_type}; charset=utf-8" if media_type else "application/json")
    fields = job_fields(record)
    if record.state == "succeeded":
        fields["result"] = await asyncio.to_thread(result_fields, await store.result(job_id))
    return JSONResponse(fields)


def _mark(request: Request) -> str:
    """What the ids of this caller's jobs begin with; nothing where no keys are asked for."""
    key = principal_of(request).name
    return "" if key is None else owner_prefix(key)


def _require_own(request: Request, job_id: str) -> None:
    if not job_id.startswith(_mark(request)):
        raise JobNotFound(f"job {job_id} does not exist: check the id; jobs are forgotten some days after they ended")


def _last_event(request: Request) -> int:
    given = request.headers.get("last-event-id", "0") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise ApiError(
            "Last-Event-ID must be the id of an event of this job", param="Last-Event-ID", code="invalid_value"
        )
    return int(given)
