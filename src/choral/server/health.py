"""Whether the server lives, and whether it can be sent requests; and its numbers for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from choral.audio.constants import SAMPLE_RATE
from choral.common.aio import cancel_tasks, run_in_thread
from choral.errors import ChoralError
from choral.server.service import Service
from choral.types import TranscribeOptions

log = logging.getLogger("choral.server")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
STATUS_SCHEMA = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}
STATUS_ANSWER = {"description": "as it is", "content": {"application/json": {"schema": STATUS_SCHEMA}}}


class Readiness:
    """Ready once the model has answered, for as long as its engine works and the server is not being shut down."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._has_answered = False

    async def self_test(self) -> None:
        """A second of noise goes the whole way through the engine."""
        noise = (np.random.default_rng(0).standard_normal(SAMPLE_RATE) * 0.05).astype(np.float32)
        options = TranscribeOptions(language="en", temperature=0.0, max_tokens=1)
        try:
            await run_in_thread(lambda: self._service.model.transcribe(noise, options), "proof")
        except ChoralError:
            log.exception("the model does not answer, and so the server does not become ready")
        else:
            self._has_answered = True

    @property
    def status(self) -> str:
        if self._service.requests.is_closing:
            return "stopping"
        if not self._service.model.is_working:
            return "failed"
        return "ready" if self._has_answered else "starting"


def make_router(service: Service) -> APIRouter:
    readiness = Readiness(service)

    @asynccontextmanager
    async def proving(app: object) -> AsyncIterator[None]:
        proof = asyncio.create_task(readiness.self_test())
        yield
        await cancel_tasks([proof])

    router = APIRouter(tags=["operation"], lifespan=proving)

    @router.get("/health/live", response_model=None, responses={"200": STATUS_ANSWER})
    async def live() -> JSONResponse:
        return JSONResponse({"status": "live"})

    @router.get("/health/ready", response_model=None, responses={"200": STATUS_ANSWER, "503": STATUS_ANSWER})
    async def ready() -> JSONResponse:
        status = readiness.status
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    @router.get(
        "/metrics",
        response_model=None,
        responses={"200": {"description": "for Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return PlainTextResponse(service.metrics.render(), media_type=PROMETHEUS)

    return router
