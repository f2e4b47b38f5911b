"""Jobs over HTTP: submit, show, list, follow, cancel and delete. The store decides where a job runs.

With API keys, each caller has its own jobs: their ids begin with a prefix derived from the key's name, and all other
ids are a 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import PurePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from choral import formats
from choral.jobs.record import job_not_found
from choral.jobs.request import new_id
from choral.server.api_errors import EVENT_STREAM, ApiError, error_responses
from choral.server.jobs.job_billing import owner_prefix
from choral.server.jobs.job_form import read_new_job, request_body
from choral.server.jobs.job_store import JobStore
from choral.server.jobs.job_views import (
    DeletedJobBody,
    JobBody,
    JobListBody,
    event_stream,
    job_body,
    job_fields,
    list_json,
)
from choral.server.quota import principal_of
from choral.server.responses import EVENT_STREAM_HEADERS, MEDIA_TYPES
from choral.server.service import Service
from choral.server.tracing import span

ResultFormat = Literal["text", "json", "verbose_json", "srt", "vtt", "tsv", "rttm"]
MAX_LISTED = 1000
LIST_SUMMARY = "List the newest jobs, without their long options"
RESULT_CONTENT: dict[str, Any] = {
    "application/json": {"schema": {"type": "object"}},
    **{media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()},
}
SHOW_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the job, or its result in the requested format", "content": RESULT_CONTENT},
    **error_responses(400, 401, 404, 409, 410, 422, 503, 507),
}
EVENT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the events", "content": EVENT_STREAM},
    **error_responses(400, 401, 404, 503, 507),
}


def make_router(service: Service, store: JobStore) -> APIRouter:
    """The routes of a store that is open; on shutdown its running jobs get time to finish."""

    @asynccontextmanager
    async def drain_on_shutdown(app: object) -> AsyncIterator[None]:
        yield
        await store.drain(service.settings.drain_s)

    router = APIRouter(tags=["jobs"], lifespan=drain_on_shutdown)

    @router.post(
        "/v1/jobs",
        summary="Submit a job",
        status_code=202,
        response_model=JobBody,
        responses=error_responses(400, 401, 404, 408, 413, 415, 429, 503, 507),
        openapi_extra=request_body(),
    )
    async def submit(request: Request) -> Response:
        return await _submit(service, store, request)

    listing = asyncio.Lock()  # one at a time, because a long list takes a while

    @router.get(
        "/v1/jobs", summary=LIST_SUMMARY, response_model=JobListBody, responses=error_responses(400, 401, 503, 507)
    )
    async def newest(request: Request, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50) -> Response:
        async with listing:
            records = await store.newest(limit, _prefix(request))
            return Response(await asyncio.to_thread(list_json, records), media_type="application/json")

    @router.get(
        "/v1/jobs/{job_id}", summary="Show a job with its result", response_model=None, responses=SHOW_RESPONSES
    )
    async def show(request: Request, job_id: str, response_format: ResultFormat | None = None) -> Response:
        _require_owner(request, job_id)
        return await _show(store, job_id, response_format)

    @router.delete(
        "/v1/jobs/{job_id}",
        summary="Cancel a job that is waiting or running; delete one that has ended",
        responses=error_responses(400, 401, 404, 503, 507),
    )
    async def remove(request: Request, job_id: str) -> JobBody | DeletedJobBody:
        _require_owner(request, job_id)
        if not (await store.show(job_id)).has_ended:
            return job_body(await store.cancel(job_id))
        await store.delete(job_id)
        return DeletedJobBody(id=job_id)

    @router.get("/v1/jobs/{job_id}/events", summary="Follow a job", response_model=None, responses=EVENT_RESPONSES)
    async def events(request: Request, job_id: str) -> Response:
        _require_owner(request, job_id)
        n_seen = _last_event_id(request)
        await store.show(job_id)  # an unknown job is a 404, not an empty stream
        stream = event_stream(store.follow(job_id), n_seen, lambda: service.requests.is_closing)
        return StreamingResponse(stream, media_type="text/event-stream", headers=EVENT_STREAM_HEADERS)

    return router


async def _submit(service: Service, store: JobStore, request: Request) -> Response:
    service.uploads.require_capacity()
    await store.require_capacity()
    job_id = _prefix(request) + new_id()
    async with AsyncExitStack() as stack:
        slot = stack.enter_context(service.uploads.admit_upload())
        with span("read the upload"):
            job = await stack.enter_async_context(read_new_job(request, service.settings, slot, job_id))
        with span("store the job"):
            record = await store.submit(job)
    return JSONResponse(job_fields(record), 202, {"Location": f"/v1/jobs/{record.id}"})


async def _show(store: JobStore, job_id: str, response_format: ResultFormat | None) -> Response:
    record = await store.show(job_id)
    if response_format is not None:
        record.require_success()
        if formats.FORMATS[response_format].needs_speakers and not record.request.options.diarize:
            text = f"{response_format} has the turns of speakers: submit the job with diarize"
            raise ApiError(text, param="response_format", code="invalid_value")
        name = PurePath(record.request.audio.name).stem
        text = await asyncio.to_thread(
            formats.render, await store.result(job_id), response_format, formats.DEFAULT_SUBTITLES, name
        )
        media_type = MEDIA_TYPES.get(response_format)
        return Response(text, media_type=f"{media_type}; charset=utf-8" if media_type else "application/json")
    fields = job_fields(record)
    if record.state == "succeeded":
        fields["result"] = await asyncio.to_thread(formats.verbose_fields, await store.result(job_id))
    return JSONResponse(fields)


def _prefix(request: Request) -> str:
    """The prefix of the caller's job ids; empty if the server requires no keys."""
    name = principal_of(request).name
    return "" if name is None else owner_prefix(name)


def _require_owner(request: Request, job_id: str) -> None:
    if not job_id.startswith(_prefix(request)):
        raise job_not_found(job_id)


def _last_event_id(request: Request) -> int:
    text = request.headers.get("last-event-id", "0") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ApiError(
            "Last-Event-ID must be the id of an event of this job", param="Last-Event-ID", code="invalid_value"
        )
    return int(text)
